//! Tunnels that are open and idle, for as long as the one who measures wants.

use crate::target::Target;
use crate::tunnel::{Opener, Through, Tunnel, echo, print_line};
use anyhow::{Result, anyhow};
use std::io::stdin;
use std::thread;

/// How many tunnels are opened at once.
const OPENERS: usize = 8;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    through: Through,
    /// How many tunnels
    #[arg(long, default_value_t = 1000)]
    count: usize,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let target = Target::keeping(arguments.through.target, OPENERS)?;
    let opener = Opener::new(&arguments.through, target.address, arguments.count)?;
    arguments.through.begin()?;
    let open = thread::scope(|scope| {
        let share = |first: usize| {
            let opener = &opener;
            let numbers = (first..arguments.count).step_by(OPENERS);
            scope.spawn(move || numbers.map(|number| open_one(opener, number)).collect::<Result<Vec<_>>>())
        };
        let openers: Vec<_> = (0..OPENERS).map(share).collect();
        let open = openers.into_iter().map(|one| one.join().map_err(|_| anyhow!("an opener panicked"))?);
        open.collect::<Result<Vec<_>>>()
    })?;
    print_line(&format!(r#"{{"open":{}}}"#, open.iter().map(Vec::len).sum::<usize>()))?;
    stdin().read_line(&mut String::new())?;
    drop(open);
    target.wait_until_left()
}

/// A tunnel has to have worked before it may be idle.
fn open_one(opener: &Opener, number: usize) -> Result<Box<dyn Tunnel>> {
    let mut stream = opener.open(number)?.stream;
    echo(&mut *stream)?;
    Ok(stream)
}
