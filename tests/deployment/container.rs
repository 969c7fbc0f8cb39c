//! deploy/container: what can be checked without building the image, which `scripts/release image` does.

use super::examples::example;
use super::{deploy, read, root};

fn lines(name: &str) -> Vec<String> {
    read(&deploy("container").join(name)).lines().map(str::to_owned).collect()
}

/// The words after each occurrence of an instruction.
fn instructions(name: &str, instruction: &str) -> Vec<Vec<String>> {
    let found = lines(name).into_iter().filter_map(|line| {
        let rest = line.strip_prefix(instruction)?.strip_prefix(' ')?;
        Some(rest.split_whitespace().map(str::to_owned).collect())
    });
    found.collect()
}

/// What is copied from the repository.
fn copied() -> Vec<String> {
    let copies =
        instructions("Containerfile", "COPY").into_iter().filter(|words| !words[0].starts_with("--from"));
    copies.flat_map(|mut words| words.drain(..words.len() - 1).collect::<Vec<_>>()).collect()
}

#[test]
fn the_build_sees_the_workspace_and_no_more() {
    let (copied, manifest) = (copied(), read(&root().join("Cargo.toml")));
    assert!(copied.len() > 5);
    for source in &copied {
        assert!(root().join(source).exists(), "{source} is not there");
    }
    let members = manifest.lines().find(|line| line.starts_with("members = ")).unwrap();
    for member in members.split('"').skip(1).step_by(2) {
        let top = member.split('/').next().unwrap();
        assert!(copied.iter().any(|source| source == top), "{member} is not copied");
    }
    let mut allowed: Vec<String> = lines("Containerfile.dockerignore")
        .iter()
        .filter_map(|line| line.strip_prefix('!').map(str::to_owned))
        .collect();
    let mut wanted = copied;
    allowed.sort();
    wanted.sort();
    assert_eq!(allowed, wanted, "what is copied is what the build may see");
}

#[test]
fn the_compiler_and_the_system_are_ours() {
    let toolchain = read(&root().join("rust-toolchain.toml"));
    let arguments = instructions("Containerfile", "ARG").concat();
    let argument = |name| arguments.iter().find_map(|argument| argument.strip_prefix(name)).unwrap();
    let version = argument("RUST_VERSION=");
    assert!(toolchain.contains(&format!("channel = \"{version}\"")), "{version}");
    // The binary is linked to the glibc of the image that it is built in, by scripts/release too.
    let text = read(&deploy("container/Containerfile"));
    assert!(text.contains("-bookworm AS source") && argument("BASE=").ends_with(":bookworm-slim"));
    assert!(read(&root().join("scripts/release")).contains("\ndebian=bookworm\n"));
    let profile = text.split("--profile ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(read(&root().join("Cargo.toml")).contains(&format!("[profile.{profile}]")));
    assert!(text.contains(&format!("target/{profile}/postern /out/postern")));
}

#[test]
fn each_image_is_checked_at_its_own_admin_listener() {
    let text = read(&deploy("container/Containerfile"));
    let configs = example("fleet");
    let (gateway, issuer) = (configs.gateway.listen, configs.issuer.listen);
    let client = configs.client.listen;
    let all = [
        ("gateway", gateway.address, gateway.admin),
        ("issuer", issuer.address, issuer.admin),
        ("client", client.address, client.admin),
    ];
    for (daemon, address, admin) in all {
        let stage = text.split(&format!("FROM runtime AS {daemon}\n")).nth(1).unwrap();
        let stage = stage.split("\nFROM ").next().unwrap();
        assert!(stage.contains(&format!("EXPOSE {}\n", address.port())), "{daemon}");
        assert!(stage.contains(&format!("\"--ready\", \"http://127.0.0.1:{}\"]", admin.port())), "{daemon}");
        let command = format!("CMD [\"{daemon}\", \"--config\", \"/etc/postern/{daemon}.toml\"]");
        assert!(stage.contains(&command), "{daemon}");
    }
    assert!(text.contains("\nUSER 65532:65532\n"));
}
