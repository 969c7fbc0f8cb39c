//! Where copies of an `add` go: shadows, and the staging side of a warm-up.

use crate::Severity::Note;
use crate::handle::{Body, Copies, Handle, Judge, join};
use crate::json::Json;
use crate::pool::Place;
use std::collections::BTreeSet;

impl<'a> Judge<'a> {
    /// Notes where copies of an `add` go, to be compared with where it is stored.
    pub(crate) fn copied_to(&mut self, shadow: &Handle<'a>) -> Option<()> {
        let mut servers = BTreeSet::new();
        let mut waiting = vec![shadow.clone()];
        while let Some(handle) = waiting.pop() {
            match &handle.body {
                Body::Server(address) => {
                    servers.insert(address.clone());
                }
                _ if handle.kind == "PoolRoute" => {
                    let pool = self.pool_of(&handle)?;
                    waiting.extend(self.servers(&pool, handle.depth() + 1)?);
                }
                Body::Text(..) => waiting.extend(self.children(&handle)?),
                Body::Object(object) => {
                    for key in ROUTES_IN {
                        let Some(value) = object.get(key) else { continue };
                        waiting.extend(self.list(value, &handle.at(key), handle.depth() + 1)?);
                    }
                    for key in ["operation_policies", "routing_group_policies"] {
                        for (name, value) in object.get(key).and_then(Json::object).into_iter().flatten() {
                            let path = join(&handle.at(key), name);
                            waiting.extend(self.list(value, &path, handle.depth() + 1)?);
                        }
                    }
                }
                Body::Nothing => {}
            }
            waiting.extend(handle.shadows);
        }
        let (path, kind) = shadow.place();
        self.copies.push(Copies { path: path.to_owned(), kind: kind.to_owned(), servers });
        Some(())
    }

    /// A copy's answer is ignored; but if it goes to a server of the storage itself, it may arrive first.
    pub(crate) fn judge_copies(&mut self, places: &[Place]) -> Option<()> {
        for copies in std::mem::take(&mut self.copies) {
            let place = (copies.path.as_str(), copies.kind.as_str());
            self.work(1 + copies.servers.len() * places.len())?;
            let own = places.iter().any(|place| !place.servers.is_disjoint(&copies.servers));
            if own {
                let reason = "copies of an `add` come to servers that keep the records themselves: where the copy is first, \
                     an honest token is called spent.";
                self.refuse(place, reason, "Copy to other servers, or not at all.");
            } else {
                let reason = "copies of an `add` go here; their answers do not count.";
                self.findings.add(Note, place, reason, "");
            }
        }
        Some(())
    }
}

/// The fields in which routes have their routes.
const ROUTES_IN: [&str; 16] = [
    "children",
    "target",
    "child",
    "normal",
    "failover",
    "warm",
    "cold",
    "staging",
    "from",
    "to",
    "l1",
    "l2",
    "destination",
    "default_policy",
    "default",
    "fallback",
];
