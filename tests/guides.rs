//! The guides show what there is: a quoted example program is the file that a test runs, and a test that the
//! conformance table names is a test of that file.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

const EXAMPLES: &str = "tests/foreign/examples";

/// An example's first line names its own file, in `docs/clients.md` as in the file.
#[test]
fn quoted_examples_are_the_files_that_are_run() {
    let page = read("docs/clients.md");
    let mut quoted = BTreeSet::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        let (_, text) = block.split_once('\n').unwrap();
        let first = text.lines().next().unwrap_or_default();
        let Some(path) = first.split([' ', ':']).find(|word| word.starts_with(EXAMPLES)) else { continue };
        assert_eq!(format!("{text}\n"), read(path), "docs/clients.md does not quote {path} as it is");
        quoted.insert(path.to_owned());
    }
    let files = std::fs::read_dir(root().join(EXAMPLES)).unwrap();
    let files: BTreeSet<String> =
        files.map(|entry| format!("{EXAMPLES}/{}", entry.unwrap().file_name().display())).collect();
    assert_eq!(quoted, files, "each example is shown, once");
}

/// `file::test` in backticks, as `docs/conformance.md` and `docs/security-model.md` name tests.
fn named_tests(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|quoted| quoted.split_once("::"))
        .filter(|(file, _)| file.contains('/') && (file.ends_with(".rs") || file.ends_with(".js")))
        .collect()
}

#[test]
fn every_test_that_is_named_exists() {
    for (page, at_least) in [("docs/conformance.md", 60), ("docs/security-model.md", 15)] {
        let text = read(page);
        let named = named_tests(&text);
        assert!(named.len() >= at_least, "{page} names only {} tests: is the search right?", named.len());
        let missing: Vec<String> = named
            .into_iter()
            .filter(|(file, test)| !has_test(&read(file), file, test))
            .map(|(file, test)| format!("{file}::{test}"))
            .collect();
        assert!(missing.is_empty(), "{page} names tests that are not there:\n{}", missing.join("\n"));
    }
}

fn has_test(text: &str, file: &str, test: &str) -> bool {
    if file.ends_with(".js") {
        return ["'", "`"].iter().any(|quote| text.contains(&format!("test({quote}{test}{quote}")));
    }
    // The attribute stands above, perhaps with others in between.
    ["#[test]", "#[tokio::test"].iter().any(|attribute| {
        let mut after = text.split(attribute).skip(1);
        let name = |after: &str| {
            after.split_once("fn ").is_some_and(|(_, rest)| rest.starts_with(&format!("{test}(")))
        };
        after.any(name)
    })
}

#[test]
fn what_is_no_test_is_not_taken_for_one() {
    let rust = "fn helper() {}\n#[test]\nfn real() {}\n#[tokio::test(flavor = \"x\")]\nasync fn other() {}\n";
    assert!(has_test(rust, "a.rs", "real") && has_test(rust, "a.rs", "other"));
    assert!(!has_test(rust, "a.rs", "helper") && !has_test(rust, "a.rs", "rea"));
    assert!(
        has_test("test('it works', x)", "a.js", "it works") && !has_test("test('it', x)", "a.js", "it works")
    );
    assert_eq!(named_tests("`a/b.rs::c` `std::fs` `x.rs`"), [("a/b.rs", "c")]);
}
