//! The findings of `postern doctor`.

use super::process::{Ended, run};
use serde_json::Value;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

/// A name server that has an answer to each question.
pub fn name_server() -> SocketAddr {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = server.recv_from(&mut question) {
            question[2] |= 0x80; // an answer
            question[3] = 3; // no such name: as good as any
            let _ = server.send_to(&question[..length], from);
        }
    });
    address
}

/// The findings about one configuration: verdict, subject, and the whole text.
pub struct Findings(Vec<[String; 3]>);

impl Findings {
    /// Of `postern doctor --json FILE`.
    pub fn of(file: &Path) -> Self {
        Self::read(&run(["doctor".as_ref(), "--json".as_ref(), file.as_os_str()]), file)
    }

    pub fn read(ended: &Ended, file: &Path) -> Self {
        let value: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:#?}"));
        let found = value["findings"].as_array().unwrap();
        let lacks = |finding: &&Value| finding["verdict"] == "bad" && !finding["remedy"].is_string();
        assert!(found.iter().find(lacks).is_none(), "a bad finding has no remedy: {ended:#?}");
        let is_bad = found.iter().any(|finding| finding["verdict"] == "bad");
        assert_eq!(ended.code != Some(0), is_bad, "{ended:#?}");
        let ours = found.iter().filter(|finding| finding["file"] == file.to_str().unwrap());
        let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
        let said = |finding: &Value| ["seen", "cost", "remedy"].map(|key| text(finding, key)).join(" | ");
        let found = |finding| [text(finding, "verdict"), text(finding, "what"), said(finding)];
        Self(ours.map(found).collect())
    }

    /// Asserts that a finding has this verdict and subject, and contains `part`.
    #[track_caller]
    pub fn has(&self, verdict: &str, what: &str, part: &str) {
        let is_it = |[of, about, said]: &[String; 3]| of == verdict && about == what && said.contains(part);
        assert!(self.0.iter().any(is_it), "no {verdict} {what} {part:?} in {:#?}", self.0);
    }

    #[track_caller]
    pub fn lacks(&self, what: &str) {
        assert!(self.0.iter().all(|[_, about, _]| about != what), "{what} in {:#?}", self.0);
    }

    #[track_caller]
    pub fn lacks_of(&self, verdict: &str, what: &str) {
        let is_it = |[of, about, _]: &[String; 3]| of == verdict && about == what;
        assert!(!self.0.iter().any(is_it), "{verdict} {what} in {:#?}", self.0);
    }

    #[track_caller]
    pub fn has_nothing_bad(&self) {
        assert!(self.0.iter().all(|[verdict, ..]| verdict != "bad"), "{:#?}", self.0);
    }
}

/// Runs `postern doctor FILE`.
pub fn doctor(file: &Path) -> Ended {
    run(["doctor".as_ref(), file.as_os_str()])
}

impl Ended {
    /// Asserts that `postern doctor` found a file with which a start would end with this code, and reports why.
    #[track_caller]
    pub fn assert_would_not_start(&self, code: i32, sentence: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        let found = self.stdout.lines().find(|line| line.starts_with("bad   file "));
        let found = found.unwrap_or_else(|| panic!("no file is bad: {self:#?}"));
        for part in sentence {
            assert!(found.contains(part), "{part:?} is not in {self:#?}");
        }
    }

    /// `postern doctor` found that a daemon can be started.
    #[track_caller]
    pub fn assert_can_start(&self) {
        let has = |start: &str| self.stdout.lines().any(|line| line.starts_with(start));
        assert!(has("well  file ") && !has("bad   file ") && !has("look  file "), "{self:#?}");
    }
}
