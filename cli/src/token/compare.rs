//! Command `postern token inspect --compare`: compares the keys and challenges that several addresses serve.

use super::inspect::WRONG;
use crate::args::Inspect;
use crate::failure::Failure;
use crate::stdio::print_line;
use postern_client::compare::{View, differences};
use postern_token::UnixSeconds;

/// Prints the view of each address, and the differences.
pub(crate) async fn compare(args: &Inspect) -> Result<(), Failure> {
    if args.compare.len() < 2 {
        return Err(Failure::usage(
            "--compare takes two addresses at least: one alone has nothing to differ from",
        ));
    }
    let mut views = Vec::new();
    for url in &args.compare {
        let view = View::fetch(url, args.ca.as_deref()).await.map_err(Failure::runtime)?;
        print_line(&view)?;
        views.push(view);
    }
    let found = differences(&views, UnixSeconds::now());
    if found.is_empty() {
        return print_line("They agree.");
    }
    Err(Failure::new(
        WRONG,
        format_args!(
            "they do not agree: {}. A key or challenge that only some are shown tells clients apart. After a change of keys a copy may be \
             behind for some minutes; compare again, also from another network",
            found.join("; ")
        ),
    ))
}
