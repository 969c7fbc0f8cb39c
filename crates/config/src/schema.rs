//! The JSON schema of a configuration, structured as its file is: sections, keys, lists of sections.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) const VARIABLE_PREFIX: &str = "POSTERN_";

pub(super) struct Schema(Value);

impl Schema {
    pub(super) fn of<T: JsonSchema>() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        Self(settings.into_generator().into_root_schema_for::<T>().to_value())
    }

    pub(super) fn root(&self) -> Node<'_> {
        Node::new(&self.0)
    }

    /// Returns the node at a path of keys. All positions of a list have one node.
    pub(super) fn at(&self, path: &[String]) -> Option<Node<'_>> {
        path.iter().try_fold(self.root(), |node, key| match key.parse::<usize>() {
            Ok(_) if node.items().is_some() => node.items(),
            _ => node.key(key),
        })
    }

    /// Returns every section, the top level first, each before the sections inside it.
    pub(super) fn sections(&self) -> Vec<Section<'_>> {
        let mut sections = Vec::new();
        let root = Leaf { path: Vec::new(), node: self.root(), default: None, required: true };
        collect(root, false, &mut sections);
        sections
    }

    /// Returns every value that a variable can set.
    pub(super) fn leaves(&self) -> Vec<Leaf<'_>> {
        self.sections()
            .into_iter()
            .filter(|section| !section.in_list)
            .flat_map(|section| section.leaves)
            .collect()
    }
}

pub(super) struct Section<'a> {
    pub(super) path: Vec<String>,
    pub(super) node: Node<'a>,
    /// `true` if it is a list of tables, or inside one.
    pub(super) in_list: bool,
    pub(super) leaves: Vec<Leaf<'a>>,
}

pub(super) struct Leaf<'a> {
    pub(super) path: Vec<String>,
    pub(super) node: Node<'a>,
    pub(super) default: Option<&'a Value>,
    pub(super) required: bool,
}

impl Leaf<'_> {
    /// Returns the name of the environment variable that overrides the key.
    pub(super) fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", bare_variable(&self.path))
    }
}

/// Returns the name of the variable for a path, without the prefix.
pub(super) fn bare_variable(path: &[String]) -> String {
    path.join("_").to_uppercase().replace('-', "_")
}

impl Section<'_> {
    /// Returns the line that begins the section in the file.
    pub(super) fn header(&self) -> String {
        let path = self.path.join(".");
        if self.in_list { format!("[[{path}]]") } else { format!("[{path}]") }
    }
}

fn collect<'a>(table: Leaf<'a>, in_list: bool, sections: &mut Vec<Section<'a>>) {
    let mut leaves = Vec::new();
    let mut inner = Vec::new();
    for (key, node) in table.node.keys() {
        let path = [table.path.as_slice(), &[key.to_owned()]].concat();
        let default = node.default().or_else(|| table.default?.get(key));
        let required = table.node.requires(key);
        if node.is_section() {
            inner.push((Leaf { path, node, default, required }, in_list));
        } else if let Some(items) = node.items().filter(Node::is_section) {
            inner.push((Leaf { path, node: items.described_by(&node), default: None, required }, true));
        } else {
            leaves.push(Leaf { path, node, default, required });
        }
    }
    sections.push(Section { path: table.path, node: table.node, in_list, leaves });
    for (table, in_list) in inner {
        collect(table, in_list, sections);
    }
}

/// One place in a schema: the schema itself and every alternative under it (`anyOf`, `oneOf`, `allOf`), except null.
#[derive(Clone)]
pub(super) struct Node<'a>(Vec<&'a Value>);

impl<'a> Node<'a> {
    fn new(value: &'a Value) -> Self {
        let mut alternatives = vec![value];
        for group in ["anyOf", "oneOf", "allOf"] {
            for inner in value.get(group).and_then(Value::as_array).into_iter().flatten() {
                if inner.get("type").and_then(Value::as_str) != Some("null") {
                    alternatives.extend(Self::new(inner).0);
                }
            }
        }
        Self(alternatives)
    }

    /// Returns the keys of a section. A key of several alternatives combines those of all.
    pub(super) fn keys(&self) -> BTreeMap<&'a str, Node<'a>> {
        let mut keys = BTreeMap::<&str, Node<'_>>::new();
        for properties in self.each("properties").filter_map(Value::as_object) {
            for (key, value) in properties {
                keys.entry(key).or_insert_with(|| Node(Vec::new())).0.extend(Self::new(value).0);
            }
        }
        keys
    }

    pub(super) fn key(&self, name: &str) -> Option<Node<'a>> {
        let map_values = || self.each("additionalProperties").find(|value| value.is_object()).map(Self::new);
        self.keys().remove(name).or_else(map_values)
    }

    /// `true` if keys that the schema does not have are allowed: in a map, or in a value of any shape.
    pub(super) fn is_open(&self) -> bool {
        self.each("additionalProperties").any(|value| value.is_object() || *value == Value::Bool(true))
    }

    pub(super) fn is_section(&self) -> bool {
        self.each("properties").next().is_some()
    }

    pub(super) fn items(&self) -> Option<Node<'a>> {
        self.each("items").next().map(Self::new)
    }

    /// `true` if only a string is accepted.
    pub(super) fn is_text(&self) -> bool {
        let types = self.types();
        !types.is_empty() && types.iter().all(|name| *name == "string")
    }

    pub(super) fn is_secret(&self) -> bool {
        self.each("format").any(|format| format == "secret")
    }

    /// `true` if a section requires `key`; in each shape, if it has several.
    pub(super) fn requires(&self, key: &str) -> bool {
        let requires = |shape: &Value| {
            shape
                .get("required")
                .and_then(Value::as_array)
                .is_some_and(|names| names.iter().any(|name| name == key))
        };
        let mut shapes = self.0.iter().filter(|shape| shape.get("properties").is_some()).peekable();
        shapes.peek().is_some() && shapes.all(|shape| requires(shape))
    }

    /// Returns the keys that a section requires in each of its shapes.
    pub(super) fn required(&self) -> Vec<&'a str> {
        self.keys().into_keys().filter(|key| self.requires(key)).collect()
    }

    pub(super) fn description(&self) -> &'a str {
        self.0.first().and_then(|value| value.get("description")?.as_str()).unwrap_or_default()
    }

    pub(super) fn default(&self) -> Option<&'a Value> {
        self.0.first().and_then(|value| value.get("default"))
    }

    /// Returns the node with the description of the list that holds it.
    fn described_by(&self, list: &Self) -> Self {
        let wrapper = list.0.first().filter(|value| value.get("description").is_some());
        Self(wrapper.into_iter().chain(&self.0).copied().collect())
    }

    /// Returns the field's own description of what it accepts ("x-accepted").
    pub(super) fn accepted_in_words(&self) -> Option<&'a str> {
        self.each("x-accepted").find_map(Value::as_str)
    }

    /// Returns the values of an enum, as TOML.
    pub(super) fn choices(&self) -> Vec<String> {
        let listed = self.each("enum").filter_map(Value::as_array).flatten();
        let mut choices: Vec<_> =
            self.each("const").chain(listed).filter(|value| !value.is_null()).map(Value::to_string).collect();
        choices.dedup();
        choices
    }

    /// Returns what may be written here, to follow "write".
    pub(super) fn accepted(&self) -> String {
        if let Some(words) = self.accepted_in_words() {
            return words.to_owned();
        }
        let mut accepted = Vec::new();
        let choices = self.choices();
        let types = self.types();
        if !choices.is_empty() {
            accepted.push(choices.join(" or "));
        }
        for name in types {
            match name {
                "boolean" => accepted.push("true or false".to_owned()),
                "integer" => accepted.push(self.range("a whole number")),
                "number" => accepted.push(self.range("a number")),
                "string" if choices.is_empty() => accepted.push("a string".to_owned()),
                "array" => accepted.push(match self.items() {
                    Some(items) => format!("a list, each item {}", items.accepted()),
                    None => "a list".to_owned(),
                }),
                "object" => accepted.push("a table".to_owned()),
                _ => {}
            }
        }
        accepted.join(", or ")
    }

    /// `true` if a value has the type, is among the choices and is in the range that the schema states. The type that parses the
    /// value may be stricter.
    pub(super) fn admits(&self, value: &toml::Value) -> bool {
        let types = self.types();
        match value {
            toml::Value::String(text) => {
                let choices = self.choices();
                types.contains(&"string")
                    && (choices.is_empty() || choices.contains(&Value::from(text.as_str()).to_string()))
            }
            toml::Value::Integer(number) => {
                types.contains(&"number") || types.contains(&"integer") && self.in_range(*number)
            }
            toml::Value::Float(_) => types.contains(&"number"),
            toml::Value::Boolean(_) => types.contains(&"boolean"),
            toml::Value::Datetime(_) => false,
            toml::Value::Array(list) => {
                types.contains(&"array")
                    && self.items().is_none_or(|items| list.iter().all(|item| items.admits(item)))
            }
            toml::Value::Table(_) => types.contains(&"object"),
        }
    }

    /// Returns the schema's reason ("x-number") to reject a number, if it has one.
    pub(super) fn reason_against(&self, value: &toml::Value) -> Option<&'a str> {
        let number = matches!(value, toml::Value::Integer(_) | toml::Value::Float(_));
        if number { self.each("x-number").find_map(Value::as_str) } else { None }
    }

    fn in_range(&self, number: i64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "bounds are those of integer types")]
        let number = number as f64;
        let [low, high] = self.bounds().map(|bound| bound.and_then(Value::as_f64));
        low.is_none_or(|low| low <= number) && high.is_none_or(|high| number <= high)
    }

    fn bounds(&self) -> [Option<&'a Value>; 2] {
        ["minimum", "maximum"].map(|name| self.each(name).next().filter(|value| value.as_f64().is_some()))
    }

    fn range(&self, what: &str) -> String {
        match self.bounds().into() {
            (Some(low), Some(high)) => format!("{what} from {low} to {high}"),
            (Some(low), None) => format!("{what}, {low} or more"),
            (None, Some(high)) => format!("{what}, {high} at most"),
            (None, None) => what.to_owned(),
        }
    }

    /// Returns the JSON types of all alternatives, each once, except null.
    fn types(&self) -> Vec<&'a str> {
        let mut types = Vec::new();
        for value in self.each("type") {
            let names = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            for name in names.iter().filter_map(Value::as_str) {
                if name != "null" && !types.contains(&name) {
                    types.push(name);
                }
            }
        }
        types
    }

    fn each(&self, keyword: &'static str) -> impl Iterator<Item = &'a Value> + use<'a, '_> {
        self.0.iter().filter_map(move |value| value.get(keyword))
    }
}
