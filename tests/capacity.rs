//! docs/operate/capacity.md agrees with `postern doctor --plan`: its worked plans are the command's output, its table
//! of constants is the program's, and each constant stands in the report it names. `UPDATE_DOCS=1` writes the document.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const DOCUMENT: &str = "docs/operate/capacity.md";
const BEGIN: &str = "<!-- constants: written by tests/capacity.rs -->\n";
const END: &str = "<!-- end of constants -->";
const PLAN: &str = "```text\n$ postern ";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn postern(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postern")).args(arguments.split_whitespace()).output().unwrap()
}

/// What a command prints; it must end well.
fn printed(arguments: &str) -> String {
    let output = postern(arguments);
    assert!(output.status.success(), "postern {arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn constants() -> Vec<Value> {
    let plan: Value = serde_json::from_str(&printed("doctor --plan --rate 1 --json")).unwrap();
    plan["constants"].as_array().unwrap().clone()
}

fn table() -> String {
    let mut table = "| constant | value | source |\n|---|---|---|\n".to_owned();
    for constant in constants() {
        let text = |name: &str| constant[name].as_str().unwrap().to_owned();
        let file = constant["source"]["file"].as_str().unwrap();
        table += &format!("| {} | {} {} | `{file}` |\n", text("name"), constant["value"], text("unit"));
    }
    table
}

/// The document with every plan and the table as they are now.
fn renewed(document: &str) -> String {
    let mut parts = document.split(PLAN);
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (command, rest) = part.split_once('\n').unwrap();
        let (_, rest) = rest.split_once("```").expect("a plan ends");
        text += &format!("{PLAN}{command}\n{}```{rest}", printed(command));
    }
    let (before, rest) = text.split_once(BEGIN).expect("the table of constants has a place");
    let (_, after) = rest.split_once(END).expect("the table of constants ends");
    format!("{before}{BEGIN}{}{END}{after}", table())
}

#[test]
fn the_document_is_what_the_command_prints() {
    let written = read(DOCUMENT);
    assert!(written.matches(PLAN).count() >= 3, "three worked plans");
    let renewed = renewed(&written);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(root().join(DOCUMENT), &renewed).unwrap();
    }
    let written = read(DOCUMENT);
    assert!(
        written == renewed,
        "{DOCUMENT} is not what the command prints; write it with\n\
         UPDATE_DOCS=1 cargo test --workspace --test across capacity::"
    );
}

#[test]
fn every_constant_stands_in_the_report_it_names() {
    for constant in constants() {
        let file = constant["source"]["file"].as_str().unwrap();
        let says = constant["source"]["says"].as_str().unwrap();
        assert!(
            read(file).contains(says),
            "{file} does not contain {says:?} (constant {})",
            constant["name"]
        );
        let value = constant["value"].as_f64().unwrap().to_string();
        assert!(says.contains(&value), "{says:?} does not have {value} (constant {})", constant["name"]);
    }
}

#[test]
fn what_makes_no_sense_is_refused_in_a_sentence() {
    for (arguments, sentence) in [
        ("doctor --plan", "--rate is missing"),
        ("doctor --plan --rate 0", "a whole number a second from 1 to 1000M"),
        ("doctor --plan --rate 1k --lifetime 30", "a bare number has no unit"),
        ("doctor --plan --rate 1k --lifetime 0s", "--lifetime must be more than nothing"),
        ("doctor --plan --rate 1k --replicas 2", "--replicas is 1"),
        ("doctor --plan --rate 1k --regions 0", "--regions is a number"),
        (
            "doctor --plan --rate 1k --regions 3 --replicas 1 --place spread",
            "--place spread is a replica in each",
        ),
        ("doctor --plan --rate 1k --nic 10", "a bandwidth such as"),
        ("doctor --rate 1k", "--plan"),
    ] {
        let output = postern(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {stderr}");
        assert!(stderr.contains(sentence) && !stderr.contains("panicked"), "{arguments}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments}: {output:?}");
    }
}
