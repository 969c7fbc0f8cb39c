//! Arrows run one way between files: no circle of imports in any crate.

use super::{packages, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Words that name what follows them.
const DEFINING: [&str; 9] =
    ["struct", "enum", "union", "fn", "trait", "type", "const", "static", "macro_rules"];

/// A module: the crate's root, a file or a block `mod name { … }` in one.
#[derive(Default)]
struct Module {
    file: PathBuf,
    children: BTreeSet<String>,
    /// Imports by the name that they give, `*` for all names.
    imports: Vec<Import>,
    /// Names that the file defines.
    defined: BTreeSet<String>,
    /// Paths in its code, and every single name.
    paths: BTreeSet<Vec<String>>,
}

struct Import {
    name: String,
    path: Vec<String>,
    is_public: bool,
}

/// The modules of one crate by their path from its root, tests aside.
#[derive(Default)]
struct Modules(BTreeMap<Vec<String>, Module>);

/// Imports: importer, imported, and the paths.
type Arrows = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

impl Modules {
    fn read(&mut self, path: Vec<String>, file: &Path, folder: &Path) {
        let text =
            std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let tokens = tokens(&text);
        self.add(path, file, folder, &without_tests(&tokens));
    }

    /// Adds a module of these tokens. The files of its children are in `folder`.
    fn add(&mut self, path: Vec<String>, file: &Path, folder: &Path, tokens: &[&str]) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        let mut named = None; // by #[path = "…"]
        let mut is_public = false;
        let mut at = 0;
        while at < tokens.len() {
            let rest = &tokens[at..];
            match *rest {
                ["#", "[", "path", "=", name, "]", ..] => {
                    named = Some(file.with_file_name("").join(name.trim_matches('"')));
                    at += 6;
                }
                ["pub", ref after @ ..] => {
                    is_public = true;
                    at += if after[0] == "(" { 1 + block(after) } else { 1 };
                    continue;
                }
                ["mod", name, end @ (";" | "{"), ..] => {
                    module.children.insert(name.to_owned());
                    let child = [&path[..], &[name.to_owned()]].concat();
                    let inner = folder.join(name);
                    if end == "{" {
                        let length = block(&rest[2..]);
                        self.add(child, file, &inner, &rest[3..1 + length]);
                        at += 2 + length;
                    } else {
                        let usual = [inner.with_extension("rs"), inner.join("mod.rs")];
                        let found = named.take().or_else(|| usual.into_iter().find(|path| path.exists()));
                        let found = found.unwrap_or_else(|| panic!("{}: no {name}", file.display()));
                        self.read(child, &found, &inner);
                        at += 3;
                    }
                }
                ["use", first, ..] if first != "<" => {
                    let end = rest.iter().position(|token| *token == ";").unwrap();
                    for (name, path) in leaves(&[], &rest[1..end]) {
                        module.imports.push(Import { name, path, is_public });
                    }
                    at += end + 1;
                }
                [".", ..] => at += 2,
                [first, ..] if is_name(first) => {
                    let names: Vec<_> = rest.chunks(2).take_while(|pair| is_name(pair[0])).collect();
                    let joined = names.iter().take_while(|pair| pair.get(1) == Some(&"::")).count();
                    let names = names.iter().take(joined + 1).map(|pair| pair[0].to_owned());
                    module.paths.insert(names.collect());
                    let next = rest.iter().skip(1).find(|token| **token != "!" && **token != "mut");
                    if DEFINING.contains(&first) {
                        module.defined.extend(next.map(|name| (*name).to_owned()));
                    }
                    at += 2 * joined + 1;
                }
                _ => at += 1,
            }
            is_public = false;
        }
        // Files that take each other's place under a `cfg` have one path. It leads to the last one.
        if let Some(other) = self.0.insert(path.clone(), module) {
            let (name, parent) = path.split_last().unwrap();
            self.0.insert([parent, &[format!("{name} in {}", other.file.display())]].concat(), other);
        }
    }

    /// The file that defines what a path in a module names, `None` outside this crate.
    fn file_of(&self, from: &[String], path: &[String], depth: usize) -> Option<&Path> {
        let mut module = match path[0].as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from[..from.len() - 1].to_vec(),
            _ => return self.follow(from, path, depth),
        };
        let mut rest = &path[1..];
        while let ["super", ..] = rest.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            module.pop();
            rest = &rest[1..];
        }
        let here = self.0[&module].file.as_path();
        if rest.is_empty() {
            return Some(here);
        }
        // A path that cannot be followed counts as the module's own.
        self.follow(&module, rest, depth).or(Some(here))
    }

    fn follow(&self, module: &[String], path: &[String], depth: usize) -> Option<&Path> {
        let (name, rest) = path.split_first()?;
        let Module { file, children, imports, defined, .. } = &self.0[module];
        if depth > 8 {
            return Some(file);
        }
        let is_child = children.contains(name);
        if is_child && !rest.is_empty() {
            let child = [module, std::slice::from_ref(name)].concat();
            return self.follow(&child, rest, depth + 1).or_else(|| Some(&self.0[&child].file));
        }
        let imported = imports.iter().find(|import| import.name == *name && import.path != path);
        if let Some(import) = imported {
            return self.file_of(module, &[&import.path[..], rest].concat(), depth + 1);
        }
        if is_child {
            return Some(&self.0[&[module, std::slice::from_ref(name)].concat()].file);
        }
        if defined.contains(name) {
            return Some(file);
        }
        let globs = imports.iter().filter(|import| import.name == "*" && import.is_public);
        globs.filter_map(|glob| self.file_of(module, &[&glob.path[..], path].concat(), depth + 1)).next()
    }

    /// Adds what each file imports. A declaration `mod x;` is no import, and neither is a re-export of a name that
    /// the file itself does not use.
    fn arrows(&self, arrows: &mut Arrows) {
        for (at, module) in &self.0 {
            let is_used = |import: &&Import| {
                !import.is_public || module.paths.iter().any(|path| path[0] == import.name)
            };
            let imports = module.imports.iter().filter(is_used).map(|import| &import.path);
            // A path may begin with the name of a module that was imported.
            let is_named = |name: &String| module.imports.iter().any(|import| import.name == *name);
            let paths = module.paths.iter().filter(|path| {
                let is_ours = ["crate", "self", "super"].contains(&path[0].as_str());
                path.len() > 1 && (is_ours || module.children.contains(&path[0]) || is_named(&path[0]))
            });
            for path in imports.chain(paths) {
                let Some(file) = self.file_of(at, path, 0).filter(|file| *file != module.file) else {
                    continue;
                };
                let of_file = arrows.entry(module.file.clone()).or_default();
                of_file.entry(file.to_owned()).or_default().insert(path.join("::"));
            }
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names with their paths that a `use` brings.
fn leaves(before: &[String], tree: &[&str]) -> Vec<(String, Vec<String>)> {
    match tree {
        [] => Vec::new(),
        ["::", rest @ ..] => leaves(before, rest),
        ["{", inner @ .., "}"] => {
            let mut depth = 0;
            let mut is_comma = |token: &&str| {
                depth += i32::from(*token == "{") - i32::from(*token == "}");
                depth == 0 && *token == ","
            };
            inner.split(|token| is_comma(token)).flat_map(|branch| leaves(before, branch)).collect()
        }
        ["*"] => vec![("*".to_owned(), before.to_vec())],
        ["self", rest @ ..] if !before.is_empty() => {
            vec![(
                rest.last().map_or_else(|| before[before.len() - 1].clone(), |name| (*name).to_owned()),
                before.to_vec(),
            )]
        }
        [name, rest @ ..] => {
            let path = [before, &[(*name).to_owned()]].concat();
            match rest {
                [] => vec![((*name).to_owned(), path)],
                ["as", other] => vec![((*other).to_owned(), path)],
                _ => leaves(&path, rest),
            }
        }
    }
}

/// The number of tokens of the block that the first token opens.
fn block(tokens: &[&str]) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate() {
        match *token {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    panic!("a block without an end: {tokens:?}")
}

/// Leaves out each item under `#[cfg(test)]` and its like.
fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let mut rest = &tokens[at..];
        let is_attribute = rest.starts_with(&["#", "["]);
        let length = if is_attribute { 1 + block(&rest[1..]) } else { 1 };
        if is_attribute && rest[2] == "cfg" && rest[..length].contains(&"test") {
            while rest.starts_with(&["#", "["]) {
                rest = &rest[1 + block(&rest[1..])..];
            }
            let is_use = rest.iter().take(5).any(|token| *token == "use");
            while !rest.is_empty() && ![";", ","].contains(&rest[0]) && (is_use || rest[0] != "{") {
                rest = &rest[if ["(", "[", "{"].contains(&rest[0]) { block(rest) } else { 1 }..];
            }
            rest = &rest[if rest.first() == Some(&"{") { block(rest) } else { 1.min(rest.len()) }..];
            at = tokens.len() - rest.len();
        } else {
            kept.extend_from_slice(&rest[..length]);
            at += length;
        }
    }
    kept
}

/// Splits code into names, `::`, literals and single signs, without comments.
fn tokens(mut text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some(first) = text.chars().next() {
        let quoted = text.strip_prefix(['b', 'c']).unwrap_or(text);
        let hashes =
            quoted.strip_prefix('r').map_or(0, |rest| rest.len() - rest.trim_start_matches('#').len());
        let length = if text.starts_with("//") {
            text.find('\n').unwrap_or(text.len())
        } else if text.starts_with("/*") {
            text.find("*/").unwrap() + 2
        } else if quoted.starts_with('r') && quoted[1 + hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = text.find('"').unwrap() + 1;
            begin + text[begin..].find(&end).unwrap() + end.len()
        } else if quoted.starts_with('"') {
            text.len() - quoted.len() + closed(quoted, '"')
        } else if quoted.starts_with('\'') {
            let is_character = quoted.chars().nth(1) == Some('\\') || quoted.chars().nth(2) == Some('\'');
            text.len() - quoted.len() + if is_character { closed(quoted, '\'') } else { 1 }
        } else if first.is_alphanumeric() || first == '_' {
            text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
        } else if text.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, rest) = text.split_at(length);
        if !first.is_whitespace() && !token.starts_with("//") && !token.starts_with("/*") {
            found.push(token);
        }
        text = rest;
    }
    found
}

/// The length of a literal up to the quote that closes it.
fn closed(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    panic!("a literal without an end: {text:.40}")
}

/// Files from which each file of the set can be reached and which it reaches.
fn circles(arrows: &Arrows) -> BTreeSet<BTreeSet<PathBuf>> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        arrows.keys().map(|file| (file, reached(arrows, file))).collect();
    let of = |file| {
        reached[file].iter().filter(|other| reached.get(**other).is_some_and(|back| back.contains(file)))
    };
    let all = arrows.keys().map(|file| of(file).map(|other| (*other).clone()).collect::<BTreeSet<_>>());
    all.filter(|circle| !circle.is_empty()).collect()
}

fn reached<'a>(arrows: &'a Arrows, from: &'a PathBuf) -> BTreeSet<&'a PathBuf> {
    let mut seen = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(file) = waiting.pop() {
        waiting
            .extend(arrows.get(file).into_iter().flatten().map(|(to, _)| to).filter(|to| seen.insert(*to)));
    }
    seen
}

fn arrows_of(package: &Path) -> Arrows {
    let mut arrows = Arrows::new();
    for begin in ["src/lib.rs", "src/main.rs", "src/spend_sim/main.rs"].map(|file| package.join(file)) {
        if begin.exists() {
            let mut modules = Modules::default();
            modules.read(Vec::new(), &begin, &begin.with_file_name(""));
            modules.arrows(&mut arrows);
        }
    }
    arrows
}

#[test]
fn no_file_imports_itself_by_way_of_others() {
    let (mut report, mut count) = (String::new(), 0);
    for package in packages() {
        let arrows = arrows_of(&package);
        count += arrows.values().map(BTreeMap::len).sum::<usize>();
        let short = |file: &Path| file.strip_prefix(root()).unwrap().display().to_string();
        for circle in circles(&arrows) {
            writeln!(report, "\na circle of {} files:", circle.len()).unwrap();
            for (from, imports) in arrows.iter().filter(|(from, _)| circle.contains(*from)) {
                for (to, paths) in imports.iter().filter(|(to, _)| circle.contains(*to)) {
                    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
                    writeln!(report, "  {} -> {}: {}", short(from), short(to), paths.join(", ")).unwrap();
                }
            }
        }
    }
    assert!(count > 1000, "only {count} arrows were found: is the search right?");
    assert!(report.is_empty(), "{report}");
}

#[test]
fn imports_are_read() {
    let code = "/* mod a; */ use crate::{a::{self, B as C}, d::*}; // use e;\n\
                #[cfg(test)]\n#[expect(dead_code)]\nfn f<'a>(g: &'a [u8; 2]) { \"\\\"}\"; 'x'; h::i() }\n\
                #[cfg(test)] use j::{k, l}; m::n(r#\"use o;\"#, '\\'');";
    let tokens = tokens(code);
    let kept = without_tests(&tokens);
    let use_ends = kept.iter().position(|token| *token == ";").unwrap();
    assert_eq!(kept[use_ends + 1..].concat(), "m::n(r#\"use o;\"#,'\\'');");
    let found = leaves(&[], &kept[1..use_ends]);
    let found: Vec<_> = found.iter().map(|(name, path)| (name.as_str(), path.join("::"))).collect();
    let expected = [("a", "crate::a"), ("C", "crate::a::B"), ("*", "crate::d")];
    assert_eq!(found, expected.map(|(name, path)| (name, path.to_owned())));
}
