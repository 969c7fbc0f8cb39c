//! Console events. None on Windows requests a reload: a changed configuration requires a restart.

use super::StopSignal;
use std::future::pending;
use std::io;
use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlLogoff, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_logoff,
    ctrl_shutdown,
};

/// Ctrl-C, Ctrl-Break, and the end of the window, the session and the system. The system ends the process some seconds after the
/// last three, regardless of the drain's deadline.
#[derive(Debug)]
pub struct StopSignals {
    c: CtrlC,
    r#break: CtrlBreak,
    close: CtrlClose,
    logoff: CtrlLogoff,
    shutdown: CtrlShutdown,
}

impl StopSignals {
    /// Installs the handlers. Call it inside a runtime, and await the events there.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            c: ctrl_c()?,
            r#break: ctrl_break()?,
            close: ctrl_close()?,
            logoff: ctrl_logoff()?,
            shutdown: ctrl_shutdown()?,
        })
    }

    /// Waits for the next event. Cancel safe.
    pub async fn next(&mut self) -> StopSignal {
        tokio::select! {
            Some(()) = self.c.recv() => StopSignal::Interrupt,
            Some(()) = self.r#break.recv() => StopSignal::Interrupt,
            Some(()) = self.close.recv() => StopSignal::Terminate,
            Some(()) = self.logoff.recv() => StopSignal::Terminate,
            Some(()) = self.shutdown.recv() => StopSignal::Terminate,
            else => pending().await,
        }
    }
}

/// Reload requests, none of which ever arrives.
#[derive(Debug)]
pub struct ReloadSignals;

impl ReloadSignals {
    /// Creates the receiver, which needs no handler.
    pub fn new() -> io::Result<Self> {
        Ok(Self)
    }

    /// Never completes.
    pub async fn next(&mut self) {
        pending().await
    }
}
