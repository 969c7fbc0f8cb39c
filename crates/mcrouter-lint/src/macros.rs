//! What mcrouter's preprocessor would expand, and this check does not.

use crate::finding::shown;
use crate::handle::{Judge, join};
use crate::json::{Json, Object};

/// The finding for a file with macros.
const WRITE_OUT: &str = "Write it out, or check what mcrouter makes of the file: \
     `get __mcrouter__.preprocessed_config` answers with it.";

/// mcrouter's built-in calls, as they are written in an object's `type` (`ConfigPreprocessor.cpp`).
const BUILT_IN: [&str; 52] = [
    "add",
    "and",
    "bitwiseAnd",
    "bitwiseLeftShift",
    "bitwiseNot",
    "bitwiseOr",
    "bitwiseRightShift",
    "bitwiseXor",
    "bool",
    "constDef",
    "contains",
    "define",
    "defined",
    "div",
    "double",
    "empty",
    "equals",
    "fail",
    "foreach",
    "hash",
    "if",
    "import",
    "int",
    "isArray",
    "isBool",
    "isDouble",
    "isInt",
    "isLocalIp",
    "isObject",
    "isString",
    "keys",
    "less",
    "macroDef",
    "merge",
    "mod",
    "mul",
    "not",
    "or",
    "process",
    "range",
    "select",
    "set",
    "shuffle",
    "size",
    "slice",
    "sort",
    "split",
    "str",
    "sub",
    "transform",
    "values",
    "weightedHash",
];

impl<'a> Judge<'a> {
    /// mcrouter's preprocessor knows macros, parameters and built-in calls. None of them is expanded here.
    pub(crate) fn finds_macros(&mut self, top: &'a Object) -> bool {
        if top.contains_key("macros") {
            self.refuse(("macros", ""), "macros are not expanded here.", WRITE_OUT);
        }
        for (key, value) in top.iter().filter(|(key, _)| *key != "macros") {
            self.find_macros(key, key);
            self.find_macros_below(key, value);
        }
        self.findings.refused()
    }

    fn find_macros_below(&mut self, path: &str, value: &'a Json) {
        match value {
            Json::Text(text) => self.find_macros(path, text),
            Json::List(list) => {
                for (index, value) in list.iter().enumerate() {
                    self.find_macros_below(&format!("{path}[{index}]"), value);
                }
            }
            Json::Object(object) => {
                let call = object.get("type").and_then(Json::text).filter(|call| BUILT_IN.contains(call));
                if let Some(call) = call {
                    let reason = format!("the built-in call `{call}` is not expanded here.");
                    self.refuse((path, ""), &reason, WRITE_OUT);
                }
                if object.contains_key("vars") {
                    self.refuse((path, ""), "`vars` are not expanded here.", WRITE_OUT);
                }
                for (key, value) in object {
                    let path = join(path, key);
                    self.find_macros(&path, key);
                    self.find_macros_below(&path, value);
                }
            }
            _ => {}
        }
    }

    fn find_macros(&mut self, path: &str, text: &str) {
        if text.starts_with('@') || text.contains(['%', '\\']) {
            let reason = format!(
                "{} holds a macro, a parameter or an escape, which is not expanded here.",
                shown(text)
            );
            self.refuse((path, ""), &reason, WRITE_OUT);
        }
    }
}
