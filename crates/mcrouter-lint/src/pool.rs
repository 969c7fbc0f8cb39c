//! Pools: which servers, chosen how.

use crate::json::{Json, Object};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;

/// A pool, with what it inherits.
#[derive(Debug)]
pub(crate) struct Pool<'a> {
    /// The way to it in the file.
    pub(crate) path: String,
    /// The pool's object, and those it inherits from.
    pub(crate) layers: Vec<&'a Object>,
    pub(crate) servers: &'a [Json],
    /// Whether all its servers are addresses; mcrouter also takes routes.
    pub(crate) plain: bool,
    /// The distinct addresses, and how keys are distributed over them; computed once.
    pub(crate) place: Option<Place>,
}

/// A pool that owns its keys: one server, or several that a hash chooses from.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Equal for two places just when the same key is looked for on the same server: a digest, for it is copied often.
    pub(crate) identity: u64,
    pub(crate) servers: Rc<BTreeSet<Rc<str>>>,
}

impl Place {
    pub(crate) fn server(address: &Rc<str>) -> Self {
        Self { identity: digest(address), servers: Rc::new(BTreeSet::from([address.clone()])) }
    }

    /// The place as seen through something that changes which server a key is looked for on.
    pub(crate) fn through(self, how: impl Hash) -> Self {
        Self { identity: digest((how, self.identity)), servers: self.servers }
    }
}

/// A digest, the same for the same value within one run.
pub(crate) fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<'a> Pool<'a> {
    pub(crate) fn field(&self, key: &str) -> Option<&'a Json> {
        self.layers.iter().find_map(|layer| layer.get(key))
    }

    /// Whether mcrouter makes several destinations of each server.
    pub(crate) fn fans_out(&self) -> bool {
        self.field("additional_fanout").is_some_and(|fanout| fanout.number() != Some(0.0))
    }

    /// The place of its keys, as a route that chooses by `choice` sees it.
    pub(crate) fn place(&self, choice: u64) -> Option<Place> {
        let place = self.place.clone()?;
        let alone = self.servers.len() == 1; // then nothing is chosen
        Some(if alone { place } else { place.through(choice) })
    }

    /// The address of a server, in one spelling. `None`: mcrouter would not take it.
    pub(crate) fn address(&self, text: &str) -> Option<Rc<str>> {
        normal(text, self.field("port_override").and_then(Json::number))
    }
}

/// `host:port[:protocol[:security[:compression]]]`, `[v6]:port...` or `unix:path...` in one spelling.
fn normal(text: &str, port_override: Option<f64>) -> Option<Rc<str>> {
    if let Some(rest) = text.strip_prefix("unix:") {
        let path = rest.split(':').next().filter(|path| !path.is_empty())?;
        return Some(format!("unix:{path}").into());
    }
    let (host, rest) = match text.strip_prefix('[') {
        Some(v6) => v6.split_once("]:")?,
        None => text.split_once(':')?,
    };
    let port: u16 = rest.split(':').next()?.parse().ok()?;
    let port = port_override.map_or_else(|| port.to_string(), |port| port.to_string());
    let host = match host.parse::<IpAddr>() {
        Ok(ip) if ip == IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]) => "127.0.0.1".to_owned(),
        Ok(ip) => ip.to_canonical().to_string(),
        Err(_) if host.is_empty() => return None,
        Err(_) if host.eq_ignore_ascii_case("localhost") => "127.0.0.1".to_owned(),
        Err(_) => host.to_ascii_lowercase(),
    };
    Some(format!("{host}:{port}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_has_one_spelling() {
        let same =
            ["localhost:11211", "127.0.0.1:11211:ascii:plain", "[::1]:11211", "[::ffff:127.0.0.1]:11211"];
        for text in same {
            assert_eq!(normal(text, None).as_deref(), Some("127.0.0.1:11211"), "{text}");
        }
        assert_eq!(normal("Cache-1.example:5", Some(6.0)).as_deref(), Some("cache-1.example:6"));
        assert_eq!(normal("unix:/run/m.sock:ascii", None).as_deref(), Some("unix:/run/m.sock"));
        for text in ["", "host", ":1", "host:x", "host:70000", "[::1", "unix:", "unix::"] {
            assert_eq!(normal(text, None), None, "{text}");
        }
    }
}
