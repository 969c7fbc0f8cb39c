//! The procedure "rotate now" as `docs/operate/change.md` has it: its steps, and the commands in them.

use crate::support::{read, root};

/// A step of the procedure.
#[derive(Debug)]
pub struct Step {
    pub text: String,
    /// The texts between backticks.
    pub code: Vec<String>,
}

/// The numbered steps of the section `heading`.
pub fn steps(heading: &str) -> Vec<Step> {
    let page = read(&root().join("docs/operate/change.md"));
    let (_, section) = page.split_once(&format!("\n{heading}\n")).expect("the section is there");
    let section = section.split("\n#").next().unwrap();
    let mut steps: Vec<String> = Vec::new();
    for line in section.lines() {
        let numbered = line.split_once(". ").filter(|(number, _)| number.parse::<usize>().is_ok());
        match (numbered, steps.last_mut()) {
            (Some((number, text)), _) => {
                assert_eq!(number, (steps.len() + 1).to_string(), "steps are counted: {line}");
                steps.push(text.to_owned());
            }
            (None, Some(step)) if line.starts_with("   ") => *step += &format!(" {}", line.trim()),
            _ => {}
        }
    }
    let code = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    steps.into_iter().map(|text| Step { code: code(&text), text }).collect()
}

impl Step {
    pub fn begins(&self, words: &str) -> bool {
        self.text.starts_with(words)
    }

    /// The one piece of code that begins with `word`.
    pub fn command(&self, word: &str) -> &str {
        let found: Vec<_> = self.code.iter().filter(|code| code.starts_with(word)).collect();
        assert_eq!(found.len(), 1, "one `{word} …` in {self:?}");
        found[0]
    }
}
