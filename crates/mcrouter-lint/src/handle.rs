//! Route handles as mcrouter builds them: objects, lists, short forms such as `PoolRoute|A`, named handles, shadows.
//!
//! Handles are read when they are come to, never all at once: by its names a small file can stand for an endless tree.
//! Depth and work are limited, so any file is judged in bounded time and stack.

use crate::Severity::Refuse;
use crate::finding::{Findings, shown};
use crate::json::{Json, Object};
use crate::pool::Pool;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// The deepest nesting of handles that is followed, by name or in place. Those that people write are under ten.
const DEEPEST: usize = 40;
/// How much is looked at: a handle is one, so is a server where servers are compared.
const MOST_WORK: usize = 500_000;

/// A route handle: its place in the file, and its content.
#[derive(Clone, Debug)]
pub(crate) struct Handle<'a> {
    /// The way to it in the file.
    pub(crate) path: String,
    /// The route's type, or `server`.
    pub(crate) kind: &'a str,
    pub(crate) body: Body<'a>,
    /// Where copies of what it gets are sent.
    pub(crate) shadows: Vec<Handle<'a>>,
    depth: usize,
}

/// How a handle was written.
#[derive(Clone, Debug)]
pub(crate) enum Body<'a> {
    /// `{"type": "HashRoute", ...}`
    Object(&'a Object),
    /// What follows the bar, as the `Pool|A` of `HashRoute|Pool|A`.
    Text(&'a Json, &'a str),
    /// `NullRoute`
    Nothing,
    /// One server of a pool.
    Server(Rc<str>),
}

impl<'a> Handle<'a> {
    pub(crate) fn field(&self, key: &str) -> Option<&'a Json> {
        match self.body {
            Body::Object(object) => object.get(key),
            _ => None,
        }
    }

    /// Its keys, when it is an object.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let object = match self.body {
            Body::Object(object) => Some(object),
            _ => None,
        };
        object.into_iter().flat_map(|object| object.keys().map(String::as_str))
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn place(&self) -> (&str, &str) {
        (&self.path, self.kind)
    }

    /// The way to one of its fields.
    pub(crate) fn at(&self, key: &str) -> String {
        join(&self.path, key)
    }
}

/// The way to the field `key` of what is at `path`.
pub(crate) fn join(path: &str, key: &str) -> String {
    let key = shown(key);
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// The configuration, and what has been found in it so far.
pub(crate) struct Judge<'a> {
    pub(crate) top: &'a Object,
    /// How long the gateways wait for an answer, if that is known.
    pub(crate) timeout: Option<Duration>,
    /// The handles that can be named, and where they stand.
    named: BTreeMap<&'a str, (String, &'a Json)>,
    pub(crate) pools: BTreeMap<&'a str, Option<Rc<Pool<'a>>>>,
    pub(crate) findings: Findings,
    /// Where copies of an `add` go.
    pub(crate) copies: Vec<Copies>,
    work: usize,
}

/// A shadow, and the servers it may reach.
#[derive(Debug)]
pub(crate) struct Copies {
    pub(crate) path: String,
    pub(crate) kind: String,
    pub(crate) servers: BTreeSet<Rc<str>>,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(top: &'a Object, timeout: Option<Duration>) -> Self {
        let mut judge = Self {
            top,
            timeout,
            named: BTreeMap::new(),
            pools: BTreeMap::new(),
            findings: Findings::default(),
            copies: Vec::new(),
            work: 0,
        };
        if let Some(named) = top.get("named_handles") {
            judge.name_all(named);
        }
        for (key, value) in top {
            judge.name_inner(key, value);
        }
        judge
    }

    fn name_all(&mut self, named: &'a Json) {
        match named {
            Json::Object(named) => {
                for (name, value) in named {
                    self.name(name, join("named_handles", name), value);
                }
            }
            Json::List(_) => {} // objects with a name of their own
            other => self.refuse(
                ("named_handles", ""),
                &format!("`named_handles` is {}; mcrouter takes an object or a list.", other.what()),
                "",
            ),
        }
    }

    /// Objects with a type and a name can be referred to by the name, wherever they stand.
    fn name_inner(&mut self, path: &str, value: &'a Json) {
        match value {
            Json::List(list) => {
                for (index, value) in list.iter().enumerate() {
                    if matches!(value, Json::List(_) | Json::Object(_)) {
                        self.name_inner(&format!("{path}[{index}]"), value);
                    }
                }
            }
            Json::Object(object) => {
                if let (Some(Json::Text(name)), Some(Json::Text(_))) =
                    (object.get("name"), object.get("type"))
                {
                    self.name(name, path.to_owned(), value);
                }
                for (key, value) in object {
                    if matches!(value, Json::List(_) | Json::Object(_)) {
                        self.name_inner(&join(path, key), value);
                    }
                }
            }
            _ => {}
        }
    }

    fn name(&mut self, name: &'a str, path: String, value: &'a Json) {
        match self.named.get(name) {
            Some((_, other)) if *other == value => {}
            Some((first, _)) => {
                let reason = format!("the name {} stands for another handle at {first}.", shown(name));
                self.refuse((&path, ""), &reason, "Give each handle a name of its own.");
            }
            None => {
                self.named.insert(name, (path, value));
            }
        }
    }

    pub(crate) fn refuse(&mut self, place: (&str, &str), reason: &str, instead: &str) {
        self.findings.add(Refuse, place, reason, instead);
    }

    /// Counts work. `None` when there has been too much of it.
    pub(crate) fn work(&mut self, amount: usize) -> Option<()> {
        self.work = self.work.saturating_add(amount);
        if self.work > MOST_WORK {
            self.refuse(
                ("", ""),
                "its routes are too many to be judged.",
                "Give Postern an mcrouter of its own.",
            );
            return None;
        }
        Some(())
    }

    /// The handles that `value` stands for, lists within lists laid out. `None`: it was refused.
    pub(crate) fn list(&mut self, value: &'a Json, path: &str, depth: usize) -> Option<Vec<Handle<'a>>> {
        self.work(1 + path.len() / 100)?;
        if depth > DEEPEST {
            let reason = format!("handles are nested deeper than {DEEPEST}, or in a circle.");
            self.refuse((path, ""), &reason, "Write the routes out flat.");
            return None;
        }
        match value {
            Json::List(list) => {
                let mut handles = Vec::new();
                for (index, value) in list.iter().enumerate() {
                    handles.extend(self.list(value, &format!("{path}[{index}]"), depth + 1)?);
                }
                Some(handles)
            }
            Json::Object(object) => match object.get("type") {
                Some(Json::Text(kind)) => self.typed(kind, Body::Object(object), path, depth),
                _ => self.no_handle(path, "an object without a `type`"),
            },
            Json::Text(text) => self.text(value, text, path, depth),
            other => self.no_handle(path, other.what()),
        }
    }

    fn no_handle<T>(&mut self, path: &str, what: &str) -> Option<T> {
        let reason = format!("mcrouter wants a route here and finds {what}.");
        self.refuse((path, ""), &reason, "Name a route, such as `PoolRoute|A`.");
        None
    }

    /// A name, or a short form.
    fn text(&mut self, whole: &'a Json, text: &'a str, path: &str, depth: usize) -> Option<Vec<Handle<'a>>> {
        if text.is_empty() {
            return Some(Vec::new()); // as mcrouter has it, for routes whose children are optional
        }
        if let Some((path, value)) = self.named.get(text).cloned() {
            // A name that stands for its own text means the short form.
            if value.text() != Some(text) {
                return self.list(value, &path, depth + 1);
            }
        }
        match text.split_once('|') {
            Some((kind, rest)) => self.typed(kind, Body::Text(whole, rest), path, depth),
            None => self.typed(text, Body::Nothing, path, depth),
        }
    }

    /// One handle, or the several that `Pool` and `ShadowRoute` stand for.
    fn typed(&mut self, kind: &'a str, body: Body<'a>, path: &str, depth: usize) -> Option<Vec<Handle<'a>>> {
        let handle = Handle { path: path.to_owned(), kind, body, shadows: Vec::new(), depth };
        match kind {
            "Pool" => self.servers_of(&handle),
            "ShadowRoute" => self.shadowed(&handle),
            _ => Some(vec![handle]),
        }
    }

    /// `Pool|A` is a list: each server of the pool is a handle.
    fn servers_of(&mut self, handle: &Handle<'a>) -> Option<Vec<Handle<'a>>> {
        let pool = match &handle.body {
            Body::Text(_, name) => self.pool_named(name, &handle.path)?,
            Body::Object(object) => self.pool_of_object(object, &handle.path)?,
            _ => return self.no_handle(&handle.path, "`Pool` without the name of a pool"),
        };
        self.servers(&pool, handle.depth)
    }

    /// The servers of a pool, each as a handle.
    pub(crate) fn servers(&mut self, pool: &Pool<'a>, depth: usize) -> Option<Vec<Handle<'a>>> {
        let mut handles = Vec::new();
        for (index, server) in pool.servers.iter().enumerate() {
            let path = format!("{}[{index}]", join(&pool.path, "servers"));
            match server {
                Json::Text(address) => {
                    self.work(1)?;
                    let body = Body::Server(pool.address(address)?);
                    let handle = Handle { path, kind: "server", body, shadows: Vec::new(), depth };
                    // `additional_fanout` lists every server once more.
                    handles.extend(vec![handle; 1 + usize::from(pool.fans_out())]);
                }
                other => handles.extend(self.list(other, &path, depth + 1)?),
            }
        }
        Some(handles)
    }

    /// `ShadowRoute` stands for its children, what each gets being copied to the shadows.
    fn shadowed(&mut self, handle: &Handle<'a>) -> Option<Vec<Handle<'a>>> {
        let mut children = self.children(handle)?;
        let shadows = self.shadows_of(handle)?;
        for child in &mut children {
            self.work(shadows.len())?;
            child.shadows.extend(shadows.iter().cloned());
        }
        Some(children)
    }

    /// The targets in a `shadows` field.
    pub(crate) fn shadows_of(&mut self, handle: &Handle<'a>) -> Option<Vec<Handle<'a>>> {
        let mut targets = Vec::new();
        if let Some(Json::List(shadows)) = handle.field("shadows") {
            for (index, shadow) in shadows.iter().enumerate() {
                if let Some(target) = shadow.object().and_then(|shadow| shadow.get("target")) {
                    let path = format!("{}[{index}].target", handle.at("shadows"));
                    targets.extend(self.list(target, &path, handle.depth + 1)?);
                }
            }
        }
        Some(targets)
    }

    /// The handles in `children`, or those after the bar of a short form.
    pub(crate) fn children(&mut self, handle: &Handle<'a>) -> Option<Vec<Handle<'a>>> {
        match handle.body {
            Body::Object(object) => match object.get("children") {
                Some(children) => self.list(children, &handle.at("children"), handle.depth + 1),
                None => Some(Vec::new()),
            },
            Body::Text(whole, rest) => self.deeper(whole, rest, handle),
            _ => Some(Vec::new()),
        }
    }

    fn deeper(&mut self, whole: &'a Json, rest: &'a str, handle: &Handle<'a>) -> Option<Vec<Handle<'a>>> {
        self.work(1)?;
        if handle.depth >= DEEPEST {
            let reason = format!("handles are nested deeper than {DEEPEST}.");
            self.refuse(handle.place(), &reason, "Write the routes out flat.");
            return None;
        }
        self.text(whole, rest, &handle.path, handle.depth + 1)
    }

    /// The one handle in the field `key`, or after the bar of a short form. `None`: it was refused.
    pub(crate) fn target(&mut self, handle: &Handle<'a>, key: &str) -> Option<Handle<'a>> {
        let list = match (&handle.body, handle.field(key)) {
            (_, Some(value)) => self.list(value, &handle.at(key), handle.depth + 1)?,
            (Body::Text(whole, rest), None) => self.deeper(whole, rest, handle)?,
            _ => Vec::new(),
        };
        self.only(list, handle.place(), key)
    }

    /// The one handle that `value` stands for.
    pub(crate) fn one(&mut self, value: &'a Json, path: &str) -> Option<Handle<'a>> {
        let list = self.list(value, path, 0)?;
        self.only(list, (path, ""), "")
    }

    /// The same, for a value somewhere inside `handle`.
    pub(crate) fn one_below(
        &mut self,
        value: &'a Json,
        path: &str,
        handle: &Handle<'a>,
    ) -> Option<Handle<'a>> {
        let list = self.list(value, path, handle.depth + 1)?;
        self.only(list, (path, ""), "")
    }

    fn only(&mut self, mut list: Vec<Handle<'a>>, place: (&str, &str), key: &str) -> Option<Handle<'a>> {
        if list.len() != 1 {
            let field = if key.is_empty() { String::new() } else { format!(" as `{key}`") };
            let reason =
                format!("mcrouter takes one route here{field} and finds {}: it would not start.", list.len());
            self.refuse(place, &reason, "For a pool, write `PoolRoute|` before its name.");
            return None;
        }
        list.pop()
    }
}
