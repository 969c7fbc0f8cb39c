//! The run line of mcrouter is read as it is meant by its first release and by today's. `mcrouter-options/` has the options of
//! both, for the programs differ: what one does not know it logs and ignores, and a word that no option takes is the name of a
//! configuration, with which it ends.

use super::{deploy, items, read, root, text, yaml};
use std::collections::BTreeMap;

const OLD: &str = include_str!("mcrouter-options/v0.15.0.txt");
const NEW: &str = include_str!("mcrouter-options/v2026.08.17.txt");

/// A command line, as `getopt_long` reads it.
#[derive(Default)]
struct Understood {
    options: BTreeMap<String, String>,
    unknown: Vec<String>,
    words: Vec<String>,
}

fn understand(line: &[String], known: &str) -> Understood {
    let rows = known.lines().filter(|row| !row.starts_with('#'));
    let rows: Vec<[&str; 3]> =
        rows.map(|row| row.split(' ').collect::<Vec<_>>().try_into().unwrap()).collect();
    let mut understood = Understood::default();
    let mut words = line.iter();
    while let Some(word) = words.next() {
        if let Some(name) = word.strip_prefix("--") {
            let (name, value) =
                name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
            match rows.iter().find(|[_, long, _]| *long == name) {
                Some([_, _, "value"]) => {
                    let value = value.unwrap_or_else(|| words.next().expect("a value follows"));
                    understood.options.insert(name.to_owned(), value.to_owned());
                }
                Some(_) => {
                    drop(understood.options.insert(name.to_owned(), value.unwrap_or_default().to_owned()))
                }
                None => understood.unknown.push(name.to_owned()),
            }
        } else if let Some(mut letters) = word.strip_prefix('-') {
            while let Some(letter) = letters.get(..1) {
                letters = &letters[1..];
                match rows.iter().find(|[short, _, _]| *short == letter) {
                    Some([_, long, takes]) if *takes != "none" => {
                        let value = match std::mem::take(&mut letters) {
                            "" if *takes == "value" => words.next().expect("a value follows"),
                            rest => rest,
                        };
                        understood.options.insert((*long).to_owned(), value.to_owned());
                    }
                    Some([_, long, _]) => drop(understood.options.insert((*long).to_owned(), String::new())),
                    None => understood.unknown.push(letter.to_owned()),
                }
            }
        } else {
            understood.words.push(word.clone());
        }
    }
    understood
}

/// The run line of deploy/mcrouter/README.md, without the program.
fn documented() -> Vec<String> {
    let page = read(&deploy("mcrouter/README.md"));
    let (_, line) = page.split_once("\n    mcrouter ").expect("a run line");
    let (line, _) = line.split_once("\n\n").unwrap();
    line.replace("\\\n", " ").split_whitespace().map(str::to_owned).collect()
}

fn of_compose() -> Vec<String> {
    let compose = yaml(&deploy("compose.mcrouter.yaml")).remove(0);
    let words: Vec<String> =
        items(&compose["services"]["router-1"]["command"]).map(|word| text(word).to_owned()).collect();
    assert_eq!(words[0], "mcrouter");
    words[1..].to_vec()
}

#[test]
fn the_run_line_is_understood_by_the_first_release_and_by_todays() {
    for (line, file) in [(documented(), "single.json"), (of_compose(), "/etc/mcrouter/mcrouter.json")] {
        let common = [
            ("port", "5000"),
            ("config-file", file),
            ("asynclog-disable", ""),
            ("probe-timeout-initial", "100"),
            ("probe-timeout-max", "500"),
        ];
        let old = [("connection-limit", "4096"), ("disable-miss-on-get-errors", "")];
        for (known, more) in [(OLD, &old[..]), (NEW, &[])] {
            let understood = understand(&line, known);
            for (name, value) in common.iter().chain(more) {
                assert_eq!(
                    understood.options.get(*name).map(String::as_str),
                    Some(*value),
                    "{name}: {line:?}"
                );
            }
            assert!(
                understood.words.is_empty(),
                "{line:?}: {:?} would be a configuration's name",
                understood.words
            );
        }
    }
    let listens = |known| understand(&documented(), known).options.get("listen-addresses").cloned();
    assert_eq!((listens(OLD), listens(NEW)), (None, Some("127.0.0.1".to_owned())));
    // None of its letters may be an option today: the program would obey each.
    let unknown = understand(&documented(), NEW).unknown;
    assert_eq!(unknown, ["n", "4", "0", "9", "6", "disable-miss-on-get-errors"]);
}

#[test]
fn one_run_line_is_used_everywhere() {
    let options = documented().split_off(4).join(" "); // behind `-p 5000 -f single.json`
    let script = read(&root().join("deploy/local/shipped.py"));
    assert!(script.contains(&format!("\"{options}\"")), "deploy/local/shipped.py: {options}");
    // A container's router listens for the others on its network.
    assert_eq!(of_compose().split_off(4).join(" ") + " --listen-addresses=127.0.0.1", options);
}

/// Faults that were shipped once.
#[test]
fn lines_that_mean_something_else_to_one_of_them_are_found() {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(understand(&words("--listen-addresses 127.0.0.1"), OLD).words, ["127.0.0.1"]);
    assert_eq!(understand(&words("-n 4096"), NEW).words, ["4096"]);
    for known in [OLD, NEW] {
        assert_eq!(understand(&words("--probe-delay-initial-ms 100"), known).words, ["100"]);
    }
}
