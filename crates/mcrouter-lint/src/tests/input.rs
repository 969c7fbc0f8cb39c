//! Files that are no fit configuration, or none at all.

use super::*;
use proptest::prelude::*;

#[test]
fn macros_are_refused_and_not_guessed_at() {
    let cases = [
        (
            "\"macros\": {\"x\": {\"type\": \"macroDef\", \"result\": 1}}, \"route\": \"PoolRoute|A\"",
            "macros",
        ),
        ("\"route\": \"@route()\"", "route"),
        ("\"route\": \"PoolRoute|%pool%\"", "route"),
        ("\"route\": {\"type\": \"if\", \"condition\": true}", "route"),
        (
            "\"route\": {\"type\": \"OperationSelectorRoute\", \"vars\": {}, \"default_policy\": \"PoolRoute|A\"}",
            "route",
        ),
        ("\"route\": {\"type\": \"HashRoute\", \"@children()\": []}", "route.@children()"),
        ("\"route\": [\"PoolRoute|A\", {\"x\": \"a\\\\%\"}]", "route[1].x"),
    ];
    for (rest, path) in cases {
        let findings = judge(&config(rest));
        expect(&findings, Refuse, "", "expanded here");
        assert_eq!(findings[0].path, path);
    }
}

#[test]
fn what_is_no_configuration_is_refused_with_a_sentence() {
    let cases = [
        ("", "line 1"),
        ("{\"route\": ", "line 1"),
        ("[]", "not an object"),
        ("{}", "neither"),
        ("{\"route\": 3}", "a number"),
        ("{\"route\": {}}", "without a `type`"),
        ("{\"route\": {\"type\": 3}}", "without a `type`"),
        ("{\"route\": []}", "finds 0"),
        ("{\"route\": \"\"}", "finds 0"),
        ("{\"route\": \"Pool\"}", "without the name"),
        ("{\"route\": \"|\"}", "not known"),
        ("{\"route\": \"x\", \"named_handles\": 3}", "`named_handles` is a number"),
        ("{\"route\": {\"type\": \"PoolRoute\", \"pool\": {\"servers\": []}}}", "needs a `name`"),
        ("{\"route\": {\"type\": \"PrefixSelectorRoute\", \"policies\": []}}", "`policies` is a list"),
    ];
    for (text, part) in cases {
        let findings = judge(text);
        assert_eq!(worst(&findings), Refuse, "{text}");
        assert!(findings.iter().any(|finding| finding.to_string().contains(part)), "{text}: {findings:#?}");
    }
    let control = judge("{\"route\": \"\\u001b[2J\"}");
    assert!(
        !control[0].to_string().contains('\u{1b}'),
        "names from the file do not reach the terminal as they are"
    );
}

/// Depth, size and names that multiply: the answer is a refusal, and soon.
#[test]
fn no_file_is_too_big_or_too_deep_to_be_answered() {
    let start = std::time::Instant::now();
    let nest = |depth: usize| {
        format!(
            "{}\"PoolRoute|A\"{}",
            "{\"type\":\"HashRoute\",\"children\":".repeat(depth),
            "}".repeat(depth)
        )
    };
    assert_eq!(worst(&everything(&nest(30))), Note);
    assert_eq!(worst(&everything(&nest(60))), Refuse);
    assert_eq!(worst(&everything(&nest(100_000))), Refuse);
    assert_eq!(worst(&everything(&format!("\"{}PoolRoute|A\"", "HashRoute|".repeat(100_000)))), Refuse);
    let eightfold = |n: usize| {
        let next = vec![format!("\"h{}\"", n + 1); 8].join(",");
        format!("\"h{n}\": {{\"type\": \"HashRoute\", \"children\": [{next}]}}")
    };
    let named: Vec<String> = (0..10).map(eightfold).collect();
    let named = format!("{}, \"h10\": \"PoolRoute|A\"", named.join(","));
    let findings = judge(&config(&format!("\"named_handles\": {{{named}}}, \"route\": \"h0\"")));
    expect(&findings, Refuse, "", "too many to be judged");
    let servers: Vec<String> =
        (0..100_000).map(|n| format!("\"10.{}.{}.{}:1\"", n >> 16, n >> 8 & 255, n & 255)).collect();
    let big = |route: &str| {
        judge(&format!(
            "{{\"pools\": {{\"A\": {{\"servers\": [{}]}}}}, \"route\": {route}}}",
            servers.join(",")
        ))
    };
    expect(&big("\"PoolRoute|A\""), Warn, "PoolRoute", "have none");
    let many = vec!["\"PoolRoute|A\""; 100_000].join(",");
    let hashed = big(&format!("{{\"type\": \"HashRoute\", \"children\": [{many}]}}"));
    expect(&hashed, Refuse, "", "too many to be judged");
    assert_eq!(worst(&big(&format!("{{\"type\": \"AllMajorityRoute\", \"children\": [{many}]}}"))), Refuse);
    assert_eq!(worst(&big("\"AllMajorityRoute|Pool|A\"")), Refuse);
    assert_eq!(worst(&big(&format!("\"{}\"", "x".repeat(5 << 20)))), Refuse);
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
}

/// The seeds of the mutations: what we deploy, and a file with something of everything.
fn seeds() -> Vec<String> {
    let all = r#""named_handles": [{"type": "PoolRoute", "name": "x", "pool": "A"}], "route": {"type":
        "PrefixSelectorRoute", "policies": {"ps1.": {"type": "OperationSelectorRoute", "default_policy": "x",
        "operation_policies": {"add": {"type": "ShadowRoute", "children": [{"type": "AllMajorityRoute", "children":
        ["Pool|three"]}], "shadows": [{"target": "PoolRoute|D"}]}}}}, "wildcard": "PoolRoute|routes"}"#;
    vec![QUORUM.to_owned(), SINGLE.to_owned(), config(all)]
}

/// What takes the place of a piece of the seed.
const PIECES: [&str; 22] = [
    "",
    "null",
    "3",
    "-1e9",
    "true",
    "\"\"",
    "[]",
    "{}",
    "[[]]",
    "\"x\"",
    "\"|\"",
    "\"Pool|A\"",
    "\"AllSyncRoute|x\"",
    ",",
    "\"",
    "{",
    "}",
    "]",
    "/*",
    "\\",
    "\"type\"",
    "{\"type\": \"FailoverRoute\", \"name\": \"x\", \"children\": \"x\"}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Whatever a file is changed into, the answer is findings, and what is not JSON any more is refused.
    #[test]
    fn no_mutation_is_a_panic(
        seed in 0..3_usize,
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize, prop::sample::select(&PIECES[..])), 1..5),
    ) {
        let mut text = seeds()[seed].clone();
        for (at, length, piece) in edits {
            let start = text.floor_char_boundary(at.index(text.len() + 1));
            let end = text.floor_char_boundary((start + length).min(text.len()));
            text.replace_range(start..end, piece);
        }
        let findings = judge(&text);
        prop_assert!(!findings.is_empty());
        prop_assert!(findings.is_sorted_by_key(|finding| std::cmp::Reverse(finding.severity)));
    }

    /// Every value of a file replaced by every kind of value: still JSON, so the judging itself is what is tried.
    #[test]
    fn no_wrong_type_is_a_panic(seed in 0..3_usize, at in any::<prop::sample::Index>(), piece in 0..13_usize) {
        let text = seeds()[seed].clone();
        let quotes: Vec<usize> = text.match_indices('"').map(|(index, _)| index).collect();
        let opening = quotes[at.index(quotes.len() / 2) * 2];
        let closing = opening + 1 + text[opening + 1..].find('"').unwrap_or_default();
        let mut text = text;
        text.replace_range(opening..=closing, PIECES[piece]);
        prop_assert!(!judge(&text).is_empty());
    }
}
