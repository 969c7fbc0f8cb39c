//! Changes of the keys that an operator asks for. Each is a row of single steps on the disk, and a start reads whatever a
//! crash leaves between two of them: a new key is there before an old one gives way.

use super::control::{KeyRequest, TokenKeyView, is_named, unknown};
use super::set_aside::{self, Aside, Why};
use super::{KeyStore, KeysError, Revoked, TokenKey, colliding, content, file_name, lives, parse_name, view};
use crate::accounts::control::not_here;
use crate::config::MAX_LIVE_KEYS;
use crate::control::{Line, Refused};
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
    /// Does what an operator asks for. The answer lists all keys, or those that were added.
    pub(crate) fn carry_out(
        &mut self,
        request: KeyRequest,
        schedule: &Schedule,
        now: UnixSeconds,
    ) -> Result<Vec<Line>, Refused> {
        if let Some(copies) = self.follows().filter(|_| request != KeyRequest::List) {
            return Err(not_here(copies));
        }
        let is_list = request == KeyRequest::List;
        let before: HashSet<_> = match request {
            KeyRequest::List => HashSet::new(),
            _ => self.keys.iter().map(|key| key.signing.id()).collect(),
        };
        match request {
            KeyRequest::List => {}
            KeyRequest::Rotate { token_type, in_seconds } => {
                let ahead = in_seconds.map_or(schedule.publish_ahead, Duration::from_secs);
                self.replace(token_type, ahead, schedule, now)?;
            }
            KeyRequest::Retire { id, revokes } => self.retire(id.as_deref(), revokes, schedule, now)?,
            KeyRequest::Import { name, content } => {
                self.import(&name, content.bytes().as_deref().map(Vec::as_slice), now)?
            }
        }
        let shown = view(&self.keys, now).into_iter().filter(|key| !before.contains(&key.id));
        let keys = shown.map(|key| Line::TokenKey(TokenKeyView::from(key)));
        let remarks = if is_list { self.orphans() } else { Vec::new() };
        Ok(keys.chain(remarks.into_iter().map(Line::Remark)).collect())
    }

    /// Makes a successor of the key of each type, or of this one.
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
        self.rotate(schedule, now)?; // there is a key to succeed then
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
            let (from, to) = (file_name(key), file_name(&shorter));
            set_aside::rename(self.directory.path(), &from, &to).map_err(|error| {
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

    /// Ends a key at once, or all. Gateways refuse the tokens of one that is revoked when they next fetch the directory, and
    /// those of another after their own grace. One that was retired before can be revoked.
    fn retire(
        &mut self,
        id: Option<&str>,
        revokes: bool,
        schedule: &Schedule,
        now: UnixSeconds,
    ) -> Result<(), Refused> {
        self.rotate(schedule, now)?;
        let is_leaving = |key: &&TokenKey| id.is_none_or(|id| is_named(&key.signing.id().to_hex(), id));
        let leaving: Vec<TokenKey> = self.keys.iter().filter(is_leaving).cloned().collect();
        let retired = if revokes { self.retired(id, now)? } else { Vec::new() };
        if let Some(id) = id.filter(|_| leaving.is_empty() && retired.is_empty()) {
            return Err(unknown(id));
        }
        // First what takes their place: a crash leaves both, never none.
        let ids: Vec<TokenKeyId> = leaving.iter().map(|key| key.signing.id()).collect();
        self.make_due(schedule, now, &ids)?;
        let kept = |name: &str, error: &dyn Display| {
            Refused::runtime(format!(
                "the key file {name} cannot be set aside: {error}; its key is still good: make the directory writable, and retire it again"
            ))
        };
        for key in leaving {
            self.end_file(&key, revokes, now).map_err(|error| kept(&file_name(&key), &error))?;
            let id = key.signing.id();
            self.keys.retain(|key| key.signing.id() != id);
            let tokens = if revokes { "; the directory says that its tokens are void" } else { "" };
            tracing::warn!(
                "token key {id:?} is retired, as an operator asked: it is not listed, and signs no more{tokens}"
            );
        }
        // Last, for a file that cannot be read keeps no key in use.
        for Aside { path, original, .. } in retired {
            let key = self.at_rest.read(&original, content(&path)?)?.key;
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            self.revoke_file(&key, &name, now).map_err(|error| kept(&name, &error))?;
            tracing::warn!(
                "token key {:?}, which was retired before, is revoked, as an operator asked: the directory says that its tokens are void",
                key.signing.id()
            );
        }
        Ok(())
    }

    /// Finds the files of keys that were retired and not revoked, and would not have ended yet.
    fn retired(&self, id: Option<&str>, now: UnixSeconds) -> Result<Vec<Aside>, Refused> {
        let directory = self.directory.path();
        let unreadable = |source| KeysError::Unreadable { path: directory.to_owned(), source };
        let is_meant = |aside: &Aside| {
            aside.why == Why::Retired
                && parse_name(&aside.original).is_some_and(|(life, short)| {
                    now < life.not_after && id.is_none_or(|id| is_named(&short, id))
                })
        };
        Ok(set_aside::all(directory).map_err(unreadable)?.into_iter().filter(is_meant).collect())
    }

    /// Sets the file of a key aside that an operator has ended.
    pub(super) fn end_file(&mut self, key: &TokenKey, revokes: bool, now: UnixSeconds) -> io::Result<()> {
        match revokes {
            true => self.revoke_file(key, &file_name(key), now),
            false => set_aside::retire(self.directory.path(), &file_name(key), now),
        }
    }

    /// Sets the file `name` aside as that of a revoked key, which the directory names from then on.
    fn revoke_file(&mut self, key: &TokenKey, name: &str, now: UnixSeconds) -> io::Result<()> {
        let id = key.signing.id().to_hex();
        let aside = set_aside::revoked_name(&file_name(key), &id, now);
        set_aside::rename(self.directory.path(), name, &aside)?;
        self.revoked.push(Revoked { id, until: key.life.not_after });
        Ok(())
    }

    /// Takes in a key by the rules of a start.
    fn import(&mut self, name: &str, content: Option<&[u8]>, now: UnixSeconds) -> Result<(), Refused> {
        let (path, content) = (Path::new(name), content.unwrap_or_default());
        let key = self.at_rest.read(path, Zeroizing::new(content.to_vec()))?.key;
        let id = key.signing.id().short();
        if self.keys.iter().any(|known| known.signing.id() == key.signing.id()) {
            return Err(Refused::usage(format!("the token key {id} is here already: nothing was imported")));
        }
        if let Some(other) = colliding(&self.keys, &key.signing) {
            return Err(KeysError::Collision { path: path.to_owned(), other: file_name(other) }.into());
        }
        if key.life.phase(now) == Phase::Over {
            return Err(Refused::usage(format!(
                "the time of the token key {id} was over at {}: nothing was imported",
                utc::rfc3339(key.life.not_after.0)
            )));
        }
        self.check_room(key.signing.token_type())?;
        if key.signing.is_elsewhere() {
            self.at_rest.find(content)?;
        }
        let path = self.directory.join(file_name(&key));
        self.at_rest.write(path, content)?;
        tracing::info!("token key {:?} is imported, as an operator asked", key.signing.id());
        self.keys.push(key);
        Ok(())
    }

    /// Requests name a key by one byte, and directories have limits.
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
