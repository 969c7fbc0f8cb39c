//! Types the shell commands of `docs/clients.md` as a reader would: each block in its own bash, with its own home.
//!
//! Replaced are the agent's port, the page and the repository that are fetched, which lie on this machine, and for apt the folder
//! of its settings: it reads the file that the page writes, and none of the machine's.

use crate::support::admin::Metrics;
use crate::support::up::Up;
use crate::support::{read, root};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Block, and the least number of its commands that fetch something.
const BLOCKS: [(&str, u64); 4] =
    [("curl -x", 2), ("export http_proxy", 1), ("git clone", 1), ("apt-get update", 1)];

fn page() -> String {
    read(&root().join("docs/clients.md"))
}

/// The blocks in ```sh fences.
fn blocks(page: &str) -> Vec<&str> {
    let found = page.split("\n```sh\n").skip(1);
    found.map(|rest| rest.split("\n```").next().unwrap()).collect()
}

fn shell(script: &str, home: &Path) {
    let mut bash = Command::new("bash");
    // The processes under test have none of the caller's proxies.
    for name in ["http_proxy", "https_proxy", "no_proxy", "all_proxy"] {
        bash.env_remove(name).env_remove(name.to_uppercase());
    }
    bash.args(["-euc", script]).env("HOME", home).current_dir(home);
    let ended = bash.output().unwrap();
    assert!(ended.status.success(), "{script}\n{}", String::from_utf8_lossy(&ended.stderr));
}

/// A web server with a page, a repository and an archive for apt. It ends with the value.
struct Site(Child);

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(home: &Path) -> (Site, String) {
    shell(
        "mkdir site && echo 'Hello from the other side.' > site/index.html && : > site/Packages
         git init -q work && cd work && git config user.email a@b.example && git config user.name a
         git commit -q --allow-empty -m first && git clone -q --bare . ../site/repository.git
         cd ../site/repository.git && git update-server-info",
        home,
    );
    let port = postern_testkit::ports::free().to_string();
    let mut python = Command::new("python3");
    python.args(["-m", "http.server", &port, "--bind", "127.0.0.1", "--directory"]).arg(home.join("site"));
    let child = python.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let site = Site(crate::support::memcached::listening(child, port.parse().unwrap(), "python3"));
    (site, format!("http://127.0.0.1:{port}/"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_of_the_page_goes_through_the_agent() {
    let home = TempDir::new().unwrap();
    let (_site, outside) = serve(home.path());
    let system = Up::start(&home.path().join("data"));
    let page = page()
        .replace("127.0.0.1:8118", &system.ports.client.to_string())
        .replace("https://example.com/", &outside);
    let blocks = blocks(&page);
    assert_eq!(blocks.len(), BLOCKS.len(), "{blocks:?}");
    for (block, (part, tunnels)) in blocks.into_iter().zip(BLOCKS) {
        assert!(block.contains(part), "{part} is not in {block}");
        let before = opened(&system).await;
        let own = TempDir::new_in(home.path()).unwrap();
        shell(&as_root(block, &outside), own.path());
        let more = opened(&system).await - before;
        assert!(more >= tunnels, "{more} requests went through the agent:\n{block}");
    }
    system.terminate().assert_stopped();
}

async fn opened(system: &Up) -> u64 {
    Metrics::of(system.ports.admin).await.requests("opened")
}

/// apt with one archive, and with its own folders.
fn as_root(block: &str, outside: &str) -> String {
    let block = block.replace("sudo ", "").replace("/etc/apt/apt.conf.d/80postern", "\"$HOME/80postern\"");
    format!(
        "apt-get() {{
             mkdir -p \"$HOME/lists/partial\"
             echo 'deb [trusted=yes] {outside} ./' > \"$HOME/sources.list\"
             APT_CONFIG=\"$HOME/80postern\" command apt-get -o Dir::Etc::Parts=/nowhere -o Dir::Etc::SourceParts=/nowhere \\
                 -o Dir::Etc::SourceList=\"$HOME/sources.list\" -o Dir::State::Lists=\"$HOME/lists\" \\
                 -o APT::Sandbox::User=root -o APT::Update::Error-Mode=any \"$@\"
         }}
         {block}"
    )
}

#[test]
fn a_block_is_what_stands_between_its_fences() {
    assert_eq!(blocks("a\n```sh\nb\nc\n```\n\n```js\nd\n```\n```sh\ne\n```"), ["b\nc", "e"]);
}
