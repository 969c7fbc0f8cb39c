//! Generates shell completions and man pages for packages from the definition of the command line.

use crate::args::Cli;
use crate::failure::Failure;
use crate::stdio::{Stdout, unprinted};
use clap::CommandFactory;
use clap_complete::Shell;
use std::fs;
use std::io::Write;
use std::path::Path;

pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut out = Stdout::lock();
    out.write_all(&completions_for(shell)).and_then(|()| out.flush()).map_err(unprinted)
}

/// Buffers the completions, because clap panics if the reader of a pipe has gone.
fn completions_for(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "postern", &mut text);
    text
}

/// Writes `postern.1` and a page for each subcommand. Creates the folder if it is missing.
pub(crate) fn man_pages(directory: &Path) -> Result<(), Failure> {
    let written =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    written.map_err(|error| {
        Failure::runtime(format_args!("cannot write man pages into {}: {error}", directory.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Returns each visible command with its full name, such as `postern token mint`.
    fn all(name: &str, command: &clap::Command) -> Vec<(String, clap::Command)> {
        let below = command.get_subcommands().filter(|command| !command.is_hide_set());
        let below = below.flat_map(|command| all(&format!("{name} {}", command.get_name()), command));
        std::iter::once((name.to_owned(), command.clone())).chain(below).collect()
    }

    #[test]
    fn every_command_has_a_man_page_with_all_its_options() {
        let home = TempDir::new().unwrap();
        let pages = home.path().join("man/man1");
        man_pages(&pages).unwrap();
        let commands = all("postern", &Cli::command());
        assert!(commands.len() > 20, "{}", commands.len());
        assert_eq!(pages.read_dir().unwrap().count(), commands.len());
        for (name, command) in commands {
            let page = pages.join(format!("{}.1", name.replace(' ', "-")));
            let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{name}: {error}"));
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(text.contains(&format!("\\-\\-{}", option.replace('-', "\\-"))), "{name} --{option}");
            }
        }
    }

    #[test]
    fn the_shells_of_the_package_complete_every_command_and_option() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(completions_for(shell)).unwrap();
            // clap writes nothing for fish below two levels, such as `postern issuer account add`.
            let depth = if shell == Shell::Fish { 3 } else { usize::MAX };
            let commands = all("postern", &Cli::command()).into_iter();
            for (name, command) in commands.filter(|(name, _)| name.split(' ').count() <= depth) {
                assert!(text.contains(name.split(' ').next_back().unwrap()), "{shell}: {name}");
                for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                    let written = match shell {
                        Shell::Fish => format!("-l {option}"),
                        _ => format!("--{option}"),
                    };
                    assert!(text.contains(&written), "{shell}: {name} --{option}");
                }
            }
        }
    }
}
