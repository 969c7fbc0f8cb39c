//! One program for all targets, which libFuzzer drives.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<postern_fuzz::Target> = LazyLock::new(postern_fuzz::chosen);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));
