//! Selectors in a text: names of metrics with their matchers. Not a parser of PromQL: it finds Postern's names
//! anywhere, so that a metric in a description is checked as well.

/// `name{label="value"}`, or the name alone.
#[derive(Debug, PartialEq, Eq)]
pub struct Selector {
    pub name: String,
    pub matchers: Vec<Matcher>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Matcher {
    pub label: String,
    pub operator: String,
    pub value: String,
}

/// Every selector of a metric or a recorded series of ours in `text`: YAML, or JSON with its quotes escaped. Comments of
/// YAML may speak of what is not there.
pub fn selectors(text: &str) -> Vec<Selector> {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let text = lines.join("\n").replace("\\\"", "\"");
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let (mut found, mut rest) = (Vec::new(), &text[..]);
    while let Some(start) = rest.find(is_part) {
        let word = &rest[start..];
        let end = word.find(|c| !is_part(c)).unwrap_or(word.len());
        rest = &word[end..];
        let name = word[..end].trim_end_matches(':'); // a key of YAML
        if is_ours(name) {
            let matchers = if rest.starts_with('{') { matchers(rest) } else { Vec::new() };
            found.push(Selector { name: name.to_owned(), matchers });
        }
    }
    found
}

/// Metrics of the daemons, series that rules record (only these have colons inside), and `up`, for its jobs.
fn is_ours(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    let of_daemons = name.starts_with("postern_") || name.starts_with("process_");
    name == "up" || begins && (of_daemons || name.matches(':').count() == 2)
}

fn matchers(text: &str) -> Vec<Matcher> {
    let mut found = Vec::new();
    let mut rest = text[1..].trim_start();
    while !rest.starts_with('}') {
        let (matcher, after) = matcher(rest)
            .unwrap_or_else(|| panic!("no matcher: {}", text.chars().take(120).collect::<String>()));
        found.push(matcher);
        rest = after.trim_start().trim_start_matches(',').trim_start();
    }
    found
}

/// The first matcher, and what comes after it.
fn matcher(text: &str) -> Option<(Matcher, &str)> {
    let (label, rest) = text.split_at(text.find(['=', '!'])?);
    let operator = ["=~", "!~", "!=", "="].into_iter().find(|operator| rest.starts_with(operator))?;
    let quoted = rest[operator.len()..].trim_start().strip_prefix('"')?;
    let (value, after) = quoted.split_once('"')?;
    let label = label.trim().to_owned();
    Some((Matcher { label, operator: operator.to_owned(), value: value.to_owned() }, after))
}

/// The labels that `by`, `without`, `on`, `ignoring` and `group_left` list.
pub fn groupings(text: &str) -> Vec<String> {
    let keywords =
        ["by (", "without (", "on (", "ignoring (", "group_left (", "by(", "without(", "on(", "ignoring("];
    let mut found = Vec::new();
    for keyword in keywords {
        for (at, _) in text.match_indices(keyword) {
            // The end of another word, such as "ratio(".
            let alone = !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let list = &text[at + keyword.len()..];
            let list = &list[..list.find(')').unwrap_or(0)];
            let plain = |c: char| c.is_ascii_alphanumeric() || "_, ".contains(c);
            // Prose has parentheses, too: labels have commas between them.
            let labels: Vec<_> = list.split(',').map(str::trim).filter(|label| !label.is_empty()).collect();
            if alone && list.chars().all(plain) && labels.iter().all(|label| !label.contains(' ')) {
                found.extend(labels.into_iter().map(str::to_owned));
            }
        }
    }
    found
}

#[test]
fn selectors_are_found_in_yaml_and_json() {
    let names = |text: &str| -> Vec<String> {
        let shown = |one: Selector| {
            let matcher = |m: &Matcher| format!("{}{}{}", m.label, m.operator, m.value);
            format!("{} {}", one.name, one.matchers.iter().map(matcher).collect::<Vec<_>>().join(" "))
        };
        selectors(text).into_iter().map(shown).collect()
    };
    assert_eq!(names("expr: rate(postern_a_total[5m]) > up"), ["postern_a_total ", "up "]);
    assert_eq!(
        names(r#""expr": "sum(postern_a{stage=\"total\", x=~\"a|b\"}) / process_open_fds""#),
        ["postern_a stage=total x=~a|b", "process_open_fds "]
    );
    assert_eq!(
        names("a:b_c:rate5m{le!=\"+Inf\",} and postern_b{ y !~ \"c\" }"),
        ["a:b_c:rate5m le!=+Inf", "postern_b y!~c"]
    );
    assert_eq!(names("  # postern_a\npostern_b # postern_c"), ["postern_b ", "postern_c "]);
    assert_eq!(names("uid: postern-prometheus # http://a:80/ POSTERN_JAEGER a:b at 12:30:00"), [""; 0]);
}

#[test]
fn groupings_are_found_and_prose_is_not() {
    let found =
        groupings("sum without (a) (x) / on (b, c) group_left () sum by(d) (rate(e[5m])) on (see the log)");
    assert_eq!(found, ["a", "b", "c", "d"]);
}
