//! Judges the configurations of routers in front of the store, under which a token might be admitted twice.

use super::config::Loaded;
use postern_daemon::examination::Finding;
use postern_gateway::config::StoreKind;
use postern_spend::routes::{self, Severity};
use std::time::Duration;

pub(super) const WHAT: &str = "router";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Router {
    Mcrouter,
    Twemproxy,
}

impl Router {
    /// Detects the router from a configuration's text: mcrouter reads JSON with comments, twemproxy YAML. Returns `None` for
    /// TOML.
    pub(super) fn of(text: &str) -> Option<Self> {
        let is_said = |line: &&str| !line.is_empty() && !line.starts_with('#') && *line != "---";
        let first = text.lines().map(str::trim).find(is_said)?;
        match first.chars().next()? {
            '{' | '/' => Some(Self::Mcrouter),
            '[' | '"' | '\'' => None,
            _ => (first.find(['=', ':']).is_some_and(|at| first[at..].starts_with(':')))
                .then_some(Self::Twemproxy),
        }
    }

    pub(super) fn is_name(name: &str) -> bool {
        let is_mcrouter = name.starts_with("mcrouter") && name.ends_with(".json");
        let is_yaml = name.ends_with(".yml") || name.ends_with(".yaml");
        is_mcrouter || is_yaml && (name.starts_with("nutcracker") || name.starts_with("twemproxy"))
    }

    /// Judges the router's configuration against the shortest store timeout of the gateways in `loaded`.
    pub(super) fn judge<'a>(self, text: &str, loaded: impl Iterator<Item = &'a Loaded>) -> Vec<Finding> {
        let patience = loaded.filter_map(patience).min();
        let found = match self {
            Self::Mcrouter => routes::judge_mcrouter(text, patience),
            Self::Twemproxy => routes::judge_twemproxy(text, patience),
        };
        let is_fit = found.iter().all(|finding| finding.severity != Severity::Refuse);
        let fit =
            is_fit.then(|| Finding::well(WHAT, "fit to remember spent tokens, as far as the file shows"));
        fit.into_iter().chain(found.into_iter().map(finding)).collect()
    }
}

pub(super) fn garbled() -> Finding {
    Finding::bad(
        WHAT,
        "it is not UTF-8, so it cannot be judged",
        "no router starts with it",
        "write it again",
    )
}

/// Returns the gateway's timeout for the store; `None` without a shared store.
fn patience(config: &Loaded) -> Option<Duration> {
    let Loaded::Gateway(config) = config else { return None };
    (config.store.kind == StoreKind::Memcached).then(|| config.store.memcached.timeout.get())
}

fn finding(found: routes::Finding) -> Finding {
    let routes::Finding { severity, place, reason, instead } = found;
    let seen = if place.is_empty() { reason } else { format!("{place}: {reason}") };
    let start_from = "start from a file of deploy/mcrouter or deploy/twemproxy".to_owned();
    let remedy = if instead.is_empty() { start_from } else { instead };
    match severity {
        Severity::Note => Finding::well(WHAT, seen),
        Severity::Warn => Finding::look(WHAT, seen).remedy(remedy),
        Severity::Refuse => Finding::bad(
            WHAT,
            seen,
            "it is not known to be fit to remember spent tokens: one may be admitted twice, or none at all",
            remedy,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_text_holds_decides_for_whom_it_is() {
        let mcrouter = ["{\"route\": ", "// pools\n{}", "\n  {}", "/* a */ {}"];
        let twemproxy = ["spent:\n  listen: 127.0.0.1:1", "# a = 1\n---\nspent: {}", "spent: # a = 1\n"];
        let ours =
            ["", "[listen]\naddress = \"127.0.0.1:1\"", "listen.admin = \"127.0.0.1:1\"", "\"a:b\" = 1"];
        assert!(mcrouter.iter().all(|text| Router::of(text) == Some(Router::Mcrouter)));
        assert!(twemproxy.iter().all(|text| Router::of(text) == Some(Router::Twemproxy)));
        assert!(ours.iter().all(|text| Router::of(text).is_none()));
    }
}
