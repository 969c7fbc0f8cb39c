//! Changes of the keys by operators. Each is a sequence of single steps on the disk, and a start reads whatever a crash
//! between two of them leaves: a new key exists before an old one is removed.

use super::control::{is_named, shown, unknown};
use super::files::{FileName, TokenKey, check_distinct, lives};
use super::set_aside::{self, Aside, Why};
use super::{KeyStore, Revoked, view};
use crate::check::MAX_LIVE_KEYS;
use crate::control::{KeyRequest, Line, Refused};
use crate::rotation::{Phase, Schedule, Takeover};
use postern_daemon::utc;
use postern_token::{TokenKeyId, TokenType, UnixSeconds};
use std::collections::HashSet;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::time::Duration;
use zeroize::Zeroizing;

impl KeyStore {
    /// Carries out an operator's request. The answer lists all keys, or those that were added.
    pub(crate) fn carry_out(
        &mut self,
        request: KeyRequest,
        schedule: &Schedule,
        now: UnixSeconds,
    ) -> Result<Vec<Line>, Refused> {
        self.exclusively(|store| store.carry_out_alone(request, schedule, now))
    }

    fn carry_out_alone(
        &mut self,
        request: KeyRequest,
        schedule: &Schedule,
        now: UnixSeconds,
    ) -> Result<Vec<Line>, Refused> {
        let is_list = request == KeyRequest::List;
        let before: HashSet<_> = self.keys.iter().map(|key| key.signing.id()).collect();
        match request {
            KeyRequest::List => {}
            KeyRequest::Rotate { token_type, in_seconds } => {
                let ahead = in_seconds.map_or(schedule.publish_ahead, Duration::from_secs);
                self.replace(token_type, ahead, schedule, now)?;
            }
            KeyRequest::Retire { id, revokes } => self.retire(id.as_deref(), revokes, schedule, now)?,
            KeyRequest::Import { name, content } => self.import(&name, &content.bytes(), now)?,
        }
        let is_shown = |key: &TokenKey| is_list || !before.contains(&key.signing.id());
        let keys = view(&self.keys, now).into_iter().filter(|(key, _)| is_shown(key));
        let keys = keys.map(|(key, phase)| Line::TokenKey(shown(&key, phase)));
        let in_hsm = self.at_rest.in_hsm.as_ref().filter(|_| is_list);
        let remarks = in_hsm.into_iter().flat_map(|in_hsm| in_hsm.orphans(&self.shelf));
        Ok(keys.chain(remarks.map(Line::Remark)).collect())
    }

    /// Makes a successor of the key of each type, or of `token_type`.
    fn replace(
        &mut self,
        token_type: Option<u16>,
        ahead: Duration,
        schedule: &Schedule,
        now: UnixSeconds,
    ) -> Result<(), Refused> {
        let wanted: Vec<_> = match token_type.map(TokenType::from_code) {
            None => schedule.types.iter().collect(),
            Some(wanted) if schedule.types.iter().any(|issued| issued == wanted) => vec![wanted],
            Some(other) => {
                return Err(Refused::usage(format!(
                    "no tokens of type {} are issued: name one of [keys] types, or add it there first",
                    other.code()
                )));
            }
        };
        self.rotate_alone(schedule, now)?; // from here on there is a key to succeed
        wanted.into_iter().try_for_each(|token_type| self.replace_one(token_type, ahead, schedule, now))
    }

    fn replace_one(
        &mut self,
        token_type: TokenType,
        ahead: Duration,
        schedule: &Schedule,
        now: UnixSeconds,
    ) -> Result<(), Refused> {
        let lives = lives(&self.keys, token_type);
        self.check_room(token_type)?;
        let takeover = Takeover::after(ahead, &lives, schedule, now).ok_or_else(|| {
            Refused::usage(format!(
                "no key of type {token_type} would be in use until a successor took over in {} s: choose a shorter time (--in)",
                ahead.as_secs()
            ))
        })?;
        self.make(token_type, takeover.life)?;
        let Some((_made, earlier)) = self.keys.split_last_mut() else { return Ok(()) };
        let shortened =
            |key: &&mut TokenKey| key.signing.token_type() == token_type && takeover.shortens(&key.life);
        for key in earlier.iter_mut().filter(shortened) {
            let shorter = TokenKey { signing: key.signing.clone(), life: takeover.shorten(key.life) };
            let (from, to) = (FileName::of(key).text, FileName::of(&shorter).text);
            self.shelf.rename(&from, &to).map_err(|error| {
                Refused::runtime(format!(
                    "the successor is made, and takes over. The key file {from} cannot be given its new name {to}: {error}. Its key \
                     signs for agents that ask for it until its earlier end"
                ))
            })?;
            *key = shorter;
            tracing::info!(
                "token key {:?} issues until {} now, as an operator asked",
                key.signing.id(),
                utc::rfc3339(takeover.at.0)
            );
        }
        Ok(())
    }

    /// Ends one key, or all, at once. Gateways refuse the tokens of a revoked key once they fetch the directory again, and those
    /// of a retired key after their own grace period. A key that was retired before can be revoked.
    fn retire(
        &mut self,
        id: Option<&str>,
        revokes: bool,
        schedule: &Schedule,
        now: UnixSeconds,
    ) -> Result<(), Refused> {
        self.rotate_alone(schedule, now)?;
        let is_leaving = |key: &&TokenKey| id.is_none_or(|id| is_named(&key.signing.id().to_hex(), id));
        let leaving: Vec<TokenKey> = self.keys.iter().filter(is_leaving).cloned().collect();
        let retired = if revokes { self.retired(id, now)? } else { Vec::new() };
        if let Some(id) = id.filter(|_| leaving.is_empty() && retired.is_empty()) {
            return Err(unknown(id));
        }
        // The replacements first: a crash leaves both, never none.
        let ids: Vec<TokenKeyId> = leaving.iter().map(|key| key.signing.id()).collect();
        self.make_due(schedule, now, &ids)?;
        let kept = |name: &str, error: &dyn Display| {
            Refused::runtime(format!(
                "the key file {name} cannot be set aside: {error}; its key is still good: make the directory writable, and retire it again"
            ))
        };
        for key in leaving {
            let name = FileName::of(&key).text;
            let ended = match revokes {
                true => self.revoke_file(&key, &name, now),
                false => self.shelf.rename(&name, &Why::Retired.mark(&name, now)),
            };
            ended.map_err(|error| kept(&name, &error))?;
            let id = key.signing.id();
            self.keys.retain(|key| key.signing.id() != id);
            let tokens = if revokes { "; the directory says that its tokens are void" } else { "" };
            tracing::warn!(
                "token key {id:?} is retired, as an operator asked: it is not listed, and signs no more{tokens}"
            );
        }
        // Last, because a file that cannot be read keeps no key in use.
        for Aside { path, original, .. } in retired {
            let key = self.at_rest.read(&original, self.shelf.content(&path)?)?.key;
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            self.revoke_file(&key, &name, now).map_err(|error| kept(&name, &error))?;
            tracing::warn!(
                "token key {:?}, which was retired before, is revoked, as an operator asked: the directory says that its tokens are void",
                key.signing.id()
            );
        }
        Ok(())
    }

    /// Returns the files of keys that were retired, not revoked, and have not expired.
    fn retired(&self, id: Option<&str>, now: UnixSeconds) -> Result<Vec<Aside>, Refused> {
        let is_meant = |Aside { why, name, .. }: &Aside| {
            let is_alive = now < name.life.not_after;
            *why == Why::Retired && is_alive && id.is_none_or(|id| is_named(&name.id, id))
        };
        Ok(set_aside::all(&self.shelf)?.into_iter().filter(is_meant).collect())
    }

    /// Sets the file `name` aside as that of a revoked key, which the directory names from then on.
    fn revoke_file(&mut self, key: &TokenKey, name: &str, now: UnixSeconds) -> io::Result<()> {
        let id = key.signing.id().to_hex();
        let aside = Why::Revoked(id.clone()).mark(&FileName::of(key).text, now);
        self.shelf.rename(name, &aside)?;
        self.revoked.push(Revoked { id, until: key.life.not_after });
        Ok(())
    }

    /// Imports a key by the rules of a start.
    fn import(&mut self, name: &str, content: &[u8], now: UnixSeconds) -> Result<(), Refused> {
        let path = Path::new(name);
        let key = self.at_rest.read(path, Zeroizing::new(content.to_vec()))?.key;
        let id = key.signing.id().short();
        if self.keys.iter().any(|known| known.signing.id() == key.signing.id()) {
            return Err(Refused::usage(format!("the token key {id} is here already: nothing was imported")));
        }
        if key.life.phase(now) == Phase::Over {
            return Err(Refused::usage(format!(
                "the time of the token key {id} was over at {}: nothing was imported",
                utc::rfc3339(key.life.not_after.0)
            )));
        }
        check_distinct(&self.keys, &key, path)?;
        self.check_room(key.signing.token_type())?;
        if key.signing.is_elsewhere() {
            self.at_rest.find(content)?;
        }
        self.at_rest.write(&self.shelf, &self.shelf.join(FileName::of(&key).text), content)?;
        tracing::info!("token key {:?} is imported, as an operator asked", key.signing.id());
        self.keys.push(key);
        Ok(())
    }

    /// Checks the number of keys: requests name a key by one byte, and directories have limits.
    fn check_room(&self, token_type: TokenType) -> Result<(), Refused> {
        let alive = lives(&self.keys, token_type).len();
        if u64::try_from(alive).is_ok_and(|alive| alive < MAX_LIVE_KEYS) {
            return Ok(());
        }
        Err(Refused::runtime(format!(
            "{alive} keys of type {token_type} are alive, the most there may be: wait until one leaves, or retire one (`postern \
             issuer key list`)"
        )))
    }
}

#[cfg(test)]
mod tests;
