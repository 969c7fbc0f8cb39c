//! What is read of a route for `add` and for `get` alike.

use crate::handle::{Body, Handle, Judge, join};
use crate::json::Json;
use crate::pool::digest;

impl<'a> Judge<'a> {
    /// The route that a selector gives to an operation. `None`: it was refused.
    pub(crate) fn operation(
        &mut self,
        handle: &Handle<'a>,
        operation: &str,
        group: &str,
    ) -> Option<Handle<'a>> {
        if matches!(handle.body, Body::Text(..)) {
            return self.target(handle, "default_policy");
        }
        let (field, key) = match handle.kind {
            "RoutingGroupRoute" => ("routing_group_policies", group),
            _ => ("operation_policies", operation),
        };
        let policies = handle.field(field);
        if let Some(policies) = policies
            && policies.object().is_none()
        {
            let reason = format!("`{field}` is {}; mcrouter takes an object.", policies.what());
            self.refuse(handle.place(), &reason, "");
            return None;
        }
        if let Some(policy) = policies.and_then(Json::object).and_then(|policies| policies.get(key)) {
            let path = join(&handle.at(field), key);
            return self.one_below(policy, &path, handle);
        }
        if handle.field("default_policy").is_some() {
            return self.target(handle, "default_policy");
        }
        let reason = format!("it has no route for `{operation}`, so mcrouter answers with an error.");
        self.refuse(handle.place(), &reason, "Name one, or a `default_policy`.");
        None
    }

    /// The children of a `FailoverWithExptimeRoute`.
    pub(crate) fn normal_and_failover(&mut self, handle: &Handle<'a>) -> Option<Vec<Handle<'a>>> {
        let mut children = vec![self.target(handle, "normal")?];
        if let Some(failover) = handle.field("failover") {
            children.extend(self.list(failover, &handle.at("failover"), handle.depth() + 1)?);
        }
        Some(children)
    }

    /// What of a `PoolRoute` or `HashRoute` decides which server has a key, as a digest.
    pub(crate) fn choice(&mut self, handle: &Handle<'a>) -> Option<u64> {
        self.digest_of(handle, &["hash", "hash_func", "salt", "weights", "tags", "bucketize"])
    }

    /// How a route changes keys, which is part of where they are looked for; as a digest. `Some(None)`: not at all.
    #[expect(clippy::option_option, reason = "the outer one is for a file that is too much work")]
    pub(crate) fn key_change(&mut self, handle: &Handle<'a>) -> Option<Option<u64>> {
        let fields: &[&str] = match handle.kind {
            "ModifyKeyRoute" => {
                &["set_routing_prefix", "ensure_key_prefix", "replace_key_prefix", "set_key_suffix"]
            }
            "KeyParseRoute" => &["num_routing_parts", "delimiter"],
            _ => return Some(None),
        };
        self.digest_of(handle, fields).map(Some)
    }

    fn digest_of(&mut self, handle: &Handle<'a>, fields: &[&str]) -> Option<u64> {
        let values: Vec<_> = fields.iter().map(|field| handle.field(field)).collect();
        let written = format!("{values:?}");
        self.work(written.len() / 100)?;
        Some(digest(written))
    }
}
