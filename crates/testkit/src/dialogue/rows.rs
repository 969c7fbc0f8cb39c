//! The rows of `rows.txt`.

/// One step of a dialogue.
#[derive(Clone, Debug)]
pub enum Step {
    /// The client sends this text.
    Send(String),
    /// The target receives this head: all of its lines, in their order.
    Arrive(&'static str),
    /// The target receives these bytes next.
    Body(&'static str),
    /// The target sends this text.
    Say(String),
    /// The target closes its connection.
    End,
    /// The client receives a head next, which begins with the first of these and contains the others.
    Get(&'static [&'static str]),
    /// The head that the client received last does not contain this text, which is in lower case.
    Lacks(&'static str),
    /// The client's connection ends without another byte.
    Closed,
}

/// Name and steps of a case.
pub type Row = (&'static str, Vec<Step>);

/// Returns the rows that apply to every Postern proxy.
#[must_use]
pub fn rows() -> Vec<Row> {
    let fields = |count| (0..count).map(|n| format!("X-{n}: y\r\n")).collect::<String>();
    let mut texts: Vec<_> = [200, 500, 1001].map(|n| (format!("{{{n} fields}}"), fields(n))).into();
    let mut rows: Vec<Row> = Vec::new();
    for line in include_str!("rows.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let unescaped = line.replace("\\r", "\r").replace("\\n", "\n").replace("\\t", "\t");
        let text = texts.iter().fold(unescaped, |text, (name, value)| text.replace(name, value));
        match (text.strip_prefix("  "), text.split_once(" = ")) {
            (Some(step), _) => rows.last_mut().unwrap().1.push(Step::of(step)),
            (None, Some((name, value))) => texts.push((format!("{{{name}}}"), value.to_owned())),
            (None, None) => rows.push((line, Vec::new())),
        }
    }
    rows
}

impl Step {
    fn of(line: &str) -> Self {
        let (word, text) = line.split_once(' ').unwrap_or((line, ""));
        let text = text.to_owned();
        match word {
            "send" => Self::Send(text),
            "arrive" => Self::Arrive(text.leak()),
            "body" => Self::Body(text.leak()),
            "say" => Self::Say(text),
            "end" => Self::End,
            "get" => Self::Get(text.leak().split(" | ").collect::<Vec<_>>().leak()),
            "lacks" => Self::Lacks(text.leak()),
            "closed" => Self::Closed,
            _ => panic!("{line}"),
        }
    }
}
