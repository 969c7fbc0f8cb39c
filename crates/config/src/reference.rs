//! Generates the reference of a configuration in Markdown from its schema.

use super::address::ADDRESS_ACCEPTED;
use super::reload::{Fixed, fixed_by};
use super::schema::{Leaf, Schema, Section};
use super::units::{DURATION_ACCEPTED, SIZE_ACCEPTED};
use schemars::JsonSchema;
use serde_json::Value;

/// Forms of values that the page explains once, and the explanations.
const EXPLAINED: [(&str, &str); 7] = [
    (DURATION_ACCEPTED, "duration"),
    (SIZE_ACCEPTED, "size"),
    (ADDRESS_ACCEPTED, "address"),
    ("true or false", "boolean"),
    ("a list, each item a string", "strings"),
    ("list, each item a whole number from 0 to 65535", "list of ports"),
    ("whole number, 0 or more", "number"),
];

/// Returns the reference of `T`: a heading `## title`, then a list for each section with every key, what it accepts, its
/// default and its doc comment, and the reason if a change needs a restart. Defaults show if `T` implements `Serialize`.
pub fn reference<T: JsonSchema>(title: &str, fixed: &[Fixed]) -> String {
    let schema = Schema::of::<T>();
    let sections = schema.sections();
    let mut text = format!("## {title}\n");
    for section in &sections {
        write_section(&mut text, section, fixed);
    }
    text
}

fn write_section(text: &mut String, section: &Section<'_>, fixed: &[Fixed]) {
    if !section.path.is_empty() {
        text.push_str(&format!("\n### `{}`\n", section.header()));
    }
    let description = section.node.description();
    if !description.is_empty() {
        text.push_str(&format!("\n{description}\n"));
    }
    if section.leaves.is_empty() {
        return;
    }
    text.push('\n');
    for leaf in &section.leaves {
        write_leaf(text, leaf, fixed);
    }
}

fn write_leaf(text: &mut String, leaf: &Leaf<'_>, fixed: &[Fixed]) {
    let key = leaf.path.last().map_or("", String::as_str);
    let default = match leaf.default {
        Some(value) if *value != Value::Null => format!(", `{value}`"),
        None if leaf.required => ", required".to_owned(),
        _ => String::new(),
    };
    let accepted = EXPLAINED
        .iter()
        .fold(one_line(&leaf.node.accepted()), |text, (accepted, word)| text.replace(accepted, word));
    let accepted = accepted.strip_prefix("a ").unwrap_or(&accepted);
    let mut description = one_line(leaf.node.description());
    if let Some(fixed) = fixed_by(&leaf.path.join("."), fixed) {
        description.push_str(&format!(" Restart: {}.", fixed.why));
    }
    text.push_str(&format!("- `{key}` ({accepted}{default}): {description}\n"));
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
