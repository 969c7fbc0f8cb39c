//! `docs/operate/accounts.md` is walked from nothing to the first token, and through each way to know an account.

use super::mint;
use crate::support::authorizer::Service;
use crate::support::daemon::Daemon;
use crate::support::process::{command, run};
use crate::support::tls::Authority;
use crate::support::{read, root};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A section of the page, up to the next one.
fn section(title: &str) -> String {
    let page = read(&root().join("docs/operate/accounts.md"));
    let (_, rest) = page.split_once(&format!("\n## {title}\n")).unwrap();
    rest.split("\n## ").next().unwrap().to_owned()
}

/// Returns the text of the first block of this language.
fn block<'a>(section: &'a str, language: &str) -> &'a str {
    let (_, rest) = section.split_once(&format!("```{language}\n")).unwrap();
    rest.split("```").next().unwrap()
}

/// The commands of a section.
fn commands(section: &str) -> Vec<&str> {
    section.lines().filter_map(|line| line.strip_prefix("    ")).collect()
}

/// The configuration of an issuer under `home`: its keys, and blocks of the page.
fn write(home: &Path, blocks: &[&str]) {
    let keys = "[keys]\ndirectory = \"issuer-state\"\n".to_owned();
    std::fs::write(home.join("issuer.toml"), blocks.concat() + &keys).unwrap();
}

/// A `postern` with the arguments of a line, in `home`.
fn postern(home: &Path, line: &str) -> Command {
    let mut command = command(line.split_whitespace().skip(1));
    command.current_dir(home);
    command
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (stdout, stderr) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_leads_from_nothing_to_the_first_token() {
    let home = TempDir::new().unwrap();
    let section = section("From nothing to the first token");
    let file = block(&section, "toml");
    // Free ports: others may have those of the page.
    let file = file.replace(":8081", ":0").replace(":9091", ":0");
    std::fs::write(home.path().join("issuer.toml"), file).unwrap();
    let lines = commands(&section);
    let [add, start, mint, show] = lines.as_slice() else { panic!("{lines:?}") };

    said(&mut postern(home.path(), add));
    let issuer = Daemon::of("issuer", postern(home.path(), start));
    let mint = mint.replace("http://127.0.0.1:8081", &issuer.http());
    assert!(said(&mut postern(home.path(), &mint)).starts_with("PrivateToken token="));
    let shown = said(&mut postern(home.path(), show));
    assert!(shown.starts_with("alice  10000/1d\n") && shown.trim_end().ends_with(": 1 tokens"), "{shown}");
    issuer.process.terminate().assert_stopped();
}

#[test]
fn the_page_leads_to_accounts_of_a_tier_and_to_those_with_a_certificate() {
    let home = TempDir::new().unwrap();
    let at = |name: &str| home.path().join(name);
    let tiers = section("Tiers");
    write(home.path(), &[block(&tiers, "toml")]);
    let [add] = commands(&tiers)[..] else { panic!("{tiers}") };
    let added = said(&mut postern(home.path(), add));
    assert!(
        added.contains("bob  10000/1d (of its tier)  5/s, 50 at once (of its tier)  tier gold"),
        "{added}"
    );

    let authority = Authority::new(home.path());
    for (file, name) in [
        (&authority.certificate, "issuer.pem"),
        (&authority.key, "issuer.key"),
        (&authority.ca, "clients-ca.pem"),
    ] {
        std::fs::copy(file, at(name)).unwrap();
    }
    let certificates = section("Client certificates");
    write(home.path(), &[block(&certificates, "toml")]);
    said(&mut postern(home.path(), "postern doctor issuer.toml"));
    let [request, extensions, sign, add] = commands(&certificates)[..] else { panic!("{certificates}") };
    let own = "mkdir tls && openssl req -x509 -newkey rsa:2048 -noenc -subj /CN=Ours -keyout tls/ca.key -out tls/ca.pem";
    let made = [own, request, extensions, sign].join("\n");
    said(Command::new("sh").current_dir(home.path()).args(["-euc", &made]));
    let added = said(&mut postern(home.path(), add));
    assert!(added.contains("certificate 1") && !added.contains("API key"), "{added}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_of_the_page_may_answer_as_the_page_says() {
    let home = TempDir::new().unwrap();
    let (tiers, elsewhere) = (section("Tiers"), section("Users that are kept elsewhere"));
    let lines: Vec<String> = block(&elsewhere, "json").lines().map(str::to_owned).collect();
    let [_, own_quota, of_tier, denied] = lines.try_into().unwrap();
    let service = Service::start(move |key| match key {
        "one" => (200, own_quota.clone()),
        "two" => (200, of_tier.clone()),
        _ => (200, denied.clone()),
    });
    let place = format!("http://{}", service.await.address);
    let authorizer = block(&elsewhere, "toml").replace("http://127.0.0.1:9000", &place);
    let listen = "[listen]\naddress = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n";
    write(home.path(), &[listen, block(&tiers, "toml"), &authorizer]);
    let issuer = Daemon::of("issuer", postern(home.path(), "postern issuer --config issuer.toml"));
    for key in ["one", "two"] {
        mint(&issuer, key).assert_stopped();
    }
    mint(&issuer, "three").assert_failed(70, &["401", "the subscription has ended"]);
    run(["token", "mint", "--issuer", &issuer.http()]).assert_failed(70, &["401"]);
    issuer.process.terminate().assert_stopped();
}
