//! The process's log, kept to be searched.

use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use tracing_subscriber::fmt::MakeWriter;

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
    /// The lines with this word that came since the last time.
    pub(crate) fn taken(&self, word: &str) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock());
        let text = String::from_utf8(bytes).unwrap();
        text.lines().filter(|line| line.contains(word)).map(str::to_owned).collect()
    }
}
