//! The process's log, kept to be searched.

use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Everything that was logged.
#[derive(Clone, Default)]
pub(crate) struct Log(pub(crate) Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    /// Logs of this process that pass the filter, such as "warn,postern=info", come here from now on.
    pub(crate) fn install(&self, filter: &str) {
        let filter: Targets = filter.parse().unwrap();
        let all = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE);
        all.with_writer(self.clone()).with_ansi(false).finish().with(filter).init();
    }

    /// The lines with this word that came since the last time.
    pub(crate) fn taken(&self, word: &str) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock());
        let text = String::from_utf8(bytes).unwrap();
        text.lines().filter(|line| line.contains(word)).map(str::to_owned).collect()
    }
}
