//! deploy/container: what can be checked without building the image, which `scripts/release image` does.

use super::examples::example;
use super::{deploy, read, root};
use std::path::{Path, PathBuf};

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

/// Returns the paths that are copied from the repository.
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

/// The files that a folder's Rust files have in the program, tests aside.
fn included(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap();
        if entry.is_dir() && !["tests", "target", "fuzz"].contains(&name) {
            included(&entry, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let text = read(&entry);
            for mark in ["include_str!(\"", "include_bytes!(\""] {
                let paths = text.split(mark).skip(1).map(|rest| rest.split_once('"').unwrap().0);
                found.extend(paths.map(|path| folder.join(path).canonicalize().unwrap()));
            }
        }
    }
}

#[test]
fn the_build_sees_every_file_that_is_in_the_program() {
    let root = root().canonicalize().unwrap();
    let copied: Vec<_> = copied().iter().map(|source| root.join(source)).collect();
    let mut files = Vec::new();
    for folder in
        copied.iter().filter(|folder| folder.join("Cargo.toml").exists() || folder.ends_with("crates"))
    {
        included(folder, &mut files);
    }
    assert!(files.iter().any(|file| file.starts_with(root.join("deploy/examples"))), "{files:#?}");
    files.retain(|file| !copied.iter().any(|source| file.starts_with(source)));
    assert!(files.is_empty(), "not copied, and in the program: {files:#?}");
}

#[test]
fn the_compiler_and_the_system_are_ours() {
    let toolchain = read(&root().join("rust-toolchain.toml"));
    let arguments = instructions("Containerfile", "ARG").concat();
    let argument = |name| arguments.iter().find_map(|argument| argument.strip_prefix(name)).unwrap();
    let compiler = argument("COMPILER=docker.io/library/rust:");
    let version = compiler.strip_suffix("-bookworm").unwrap();
    assert!(toolchain.contains(&format!("channel = \"{version}\"")), "{version}");
    // The binary is linked to the glibc of the image that it is built in, by scripts/release too.
    let text = read(&deploy("container/Containerfile"));
    assert!(argument("BASE=").ends_with(":bookworm-slim"));
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
        assert!(stage.contains(&format!("\"status\", \"http://127.0.0.1:{}\"]", admin.port())), "{daemon}");
        let command = format!("CMD [\"{daemon}\", \"--config\", \"/etc/postern/{daemon}.toml\"]");
        assert!(stage.contains(&command), "{daemon}");
    }
    assert!(text.contains("\nUSER 65532:65532\n"));
}
