//! The guides show what there is: a quoted example program is the file that a test runs, and a test that the
//! conformance table names is a test of that file.

use crate::support::root;
use std::collections::BTreeSet;
use std::path::Path;

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

/// `file::test` in backticks, as `docs/reference/conformance.md` and `docs/security/model.md` name tests.
fn named_tests(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|quoted| quoted.split_once("::"))
        .filter(|(file, _)| file.contains('/') && (file.ends_with(".rs") || file.ends_with(".js")))
        .collect()
}

#[test]
fn every_test_that_is_named_exists() {
    for (page, at_least) in [("docs/reference/conformance.md", 60), ("docs/security/model.md", 15)] {
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

/// A test that returns early where a program is missing counts as passed. It is ignored instead, with a reason that
/// begins with "needs", and `scripts/test` runs its target where the program is, or lists it as not run.
#[test]
fn scripts_test_knows_every_test_that_needs_a_program() {
    let script = read("scripts/test");
    let folders = [
        "tests",
        "gateway/tests",
        "issuer/tests",
        "client/tests",
        "crates/daemon/tests",
        "crates/spend/tests",
        "crates/token/tests",
        "client/src/wallet/tests",
        "crates/daemon/src/files/tests",
        "crates/testkit/src/forgetful",
    ];
    let mut needing = BTreeSet::new();
    for folder in folders {
        for (path, target) in test_files(&root().join(folder)) {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("#[ignore]\n"), "{}: an ignored test gives the reason", path.display());
            if text.contains("#[ignore = \"needs ") && !path.ends_with("guides.rs") {
                needing.insert(target);
            }
        }
    }
    assert!(needing.len() >= 5, "only {needing:?} were found: is the search right?");
    let (_, calls) = script.split_once("tests_that_need_programs() {").unwrap();
    let calls = calls.split_once("\n}").unwrap().0;
    let named: BTreeSet<&str> = calls.split_whitespace().collect();
    let unknown: Vec<_> = needing.iter().filter(|target| !named.contains(target.as_str())).collect();
    assert!(unknown.is_empty(), "scripts/test runs none of {unknown:?} where its program is");
}

/// The files of a folder of tests, and the module of the binary that each is a part of: itself, or the folder it lies
/// in.
fn test_files(folder: &Path) -> Vec<(std::path::PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let target = entry.file_stem().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() && target != "node_modules" && target != "foreign" {
            found.extend(test_files(&entry).into_iter().map(|(path, _)| (path, target.clone())));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push((entry, target));
        }
    }
    found
}
