//! Which routes Postern's keys take: by routing prefix, then by key prefix.

use crate::Severity::Note;
use crate::handle::{Judge, join};
use crate::json::Json;
use postern_spend::memcached::KEY_PREFIXES;

/// The prefix of keys that carry no routing prefix, as Postern's, unless mcrouter runs with another `--route-prefix`.
const DEFAULT_ROUTE: &str = "/././";

/// The route that chooses by key; mcrouter knows it at the root only.
const SELECTOR: &str = "PrefixSelectorRoute";

/// One of `routes`.
struct Entry<'a> {
    path: String,
    aliases: Vec<&'a str>,
    route: Option<&'a Json>,
}

impl<'a> Judge<'a> {
    pub(crate) fn routes(&mut self) {
        match (self.top.get("route"), self.top.get("routes")) {
            (Some(route), None) => self.selector(route, "route"),
            (None, Some(Json::List(routes))) => {
                let entries: Vec<_> =
                    routes.iter().enumerate().map(|(index, entry)| entry_of(index, entry)).collect();
                self.by_routing_prefix(entries);
            }
            (None, Some(Json::Object(routes))) => {
                let entry = |(alias, route): (&'a String, &'a Json)| Entry {
                    path: join("routes", alias),
                    aliases: vec![alias.as_str()],
                    route: Some(route),
                };
                self.by_routing_prefix(routes.iter().map(entry).collect());
            }
            (None, Some(other)) => {
                let reason = format!("`routes` is {}; mcrouter takes a list or an object.", other.what());
                self.refuse(("routes", ""), &reason, "");
            }
            (Some(_), Some(_)) => {
                self.refuse(("", ""), "it has both `route` and `routes`.", "Keep one of them.")
            }
            (None, None) => self.refuse(("", ""), "it has neither `route` nor `routes`.", "Write a `route`."),
        }
    }

    /// Postern's keys have no routing prefix: they take the default route, which the command line names.
    fn by_routing_prefix(&mut self, entries: Vec<Entry<'a>>) {
        let is_default = |entry: &Entry<'_>| entry.aliases.contains(&DEFAULT_ROUTE);
        let default = entries.iter().any(is_default);
        for entry in entries {
            let Some(route) = entry.route else {
                self.refuse((&entry.path, ""), "it has no `route`.", "Write one.");
                continue;
            };
            if default && !is_default(&entry) {
                let reason = "not judged: keys without a routing prefix, as Postern's are, take the route of /././ \
                     unless mcrouter is started with --route-prefix.";
                self.findings.add(Note, (&entry.path, ""), reason, "");
            } else {
                self.selector(route, &entry.path);
            }
        }
    }

    /// A route, or one for each prefix of keys. The longest prefix that a key begins with counts.
    fn selector(&mut self, route: &'a Json, path: &str) {
        let selector =
            route.object().filter(|route| route.get("type").and_then(Json::text) == Some(SELECTOR));
        let Some(selector) = selector else { return self.both(route, path) };
        let policies = match selector.get("policies") {
            None => None,
            Some(Json::Object(policies)) => Some(policies),
            Some(other) => {
                let reason = format!("`policies` is {}; mcrouter takes an object.", other.what());
                return self.refuse((path, SELECTOR), &reason, "");
            }
        };
        let mut taken: Vec<Vec<(String, &'a Json)>> = Vec::new();
        for prefix in KEY_PREFIXES {
            let matching = |policy: &str| prefix.starts_with(policy) || policy.starts_with(prefix);
            let mut routes: Vec<_> =
                policies.into_iter().flatten().filter(|(policy, _)| matching(policy)).collect();
            // Those shorter than the prefix hide one another, and the wildcard.
            let whole = routes.iter().filter(|(policy, _)| prefix.starts_with(policy.as_str()));
            let longest = whole.map(|(policy, _)| policy.len()).max();
            routes.retain(|(policy, _)| policy.len() >= longest.unwrap_or_default());
            let at = join(path, "policies");
            let mut routes: Vec<_> =
                routes.into_iter().map(|(policy, route)| (join(&at, policy), route)).collect();
            match selector.get("wildcard") {
                Some(wildcard) if longest.is_none() => routes.push((join(path, "wildcard"), wildcard)),
                None if longest.is_none() => {
                    let reason = format!("keys that begin with {prefix} have no route, and Postern's do.");
                    self.refuse((path, SELECTOR), &reason, "Write a `wildcard`.");
                }
                _ => {}
            }
            taken.push(routes);
        }
        let same = taken
            .iter()
            .all(|routes| routes.iter().map(|(_, route)| route).eq(taken[0].iter().map(|(_, route)| route)));
        if !same || taken[0].len() > 1 {
            let reason = "not all of Postern's keys (ps1., pc1., pp1.) take one route: canaries would watch another store \
                 than the one that is used.";
            self.refuse((path, SELECTOR), reason, "Give all three prefixes the same route.");
        }
        for (path, route) in &taken[0] {
            self.both(route, path);
        }
    }
}

fn entry_of(index: usize, entry: &Json) -> Entry<'_> {
    let object = entry.object();
    let aliases = match object.and_then(|entry| entry.get("aliases")) {
        Some(Json::List(aliases)) => aliases.iter().filter_map(Json::text).collect(),
        _ => Vec::new(),
    };
    Entry {
        path: format!("routes[{index}].route"),
        aliases,
        route: object.and_then(|entry| entry.get("route")),
    }
}
