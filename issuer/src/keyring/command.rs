//! An operator's commands on the keys, on their way to the task that owns them.

use crate::control::{Line, Refused};
use crate::keys::KeyStore;
use crate::keys::control::KeyRequest;
use crate::rotation::Schedule;
use postern_token::UnixSeconds;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// The most commands that wait: as many as the socket takes operators.
const MOST_WAITING: usize = 8;
/// How long a command may wait and take. Making a key takes a second at worst.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is said to the operator.
pub(crate) type Answer = Result<Vec<Line>, Refused>;

/// A request, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Command {
    request: KeyRequest,
    reply: oneshot::Sender<Answer>,
}

/// An answer that is given once the change is served.
pub(super) struct Answered {
    answer: Answer,
    reply: oneshot::Sender<Answer>,
}

impl Command {
    /// Nothing if the operator does not wait for it any more: then it is not done.
    pub(super) fn carry_out(
        self,
        store: &mut KeyStore,
        schedule: &Schedule,
        now: UnixSeconds,
    ) -> Option<Answered> {
        let Self { request, reply } = self;
        (!reply.is_closed()).then(|| Answered { answer: store.carry_out(request, schedule, now), reply })
    }
}

impl Answered {
    pub(super) fn send(self) {
        let _ = self.reply.send(self.answer); // the operator may have gone
    }
}

/// Where commands are given.
#[derive(Clone, Debug)]
pub(crate) struct Commands(mpsc::Sender<Command>);

impl Commands {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Command>) {
        let (sender, receiver) = mpsc::channel(MOST_WAITING);
        (Self(sender), receiver)
    }

    /// Waits for its turn and its end, for 20 s at most.
    pub(crate) async fn carry_out(&self, request: KeyRequest) -> Answer {
        let (reply, answer) = oneshot::channel();
        let done = async {
            self.0.send(Command { request, reply }).await.ok()?;
            answer.await.ok()
        };
        let broken = |why: &str| {
            Err(Refused::runtime(format!(
                "{why}, and it may have done what was asked: look with `postern issuer key list`"
            )))
        };
        match timeout(PATIENCE, done).await {
            Ok(Some(answer)) => answer,
            Ok(None) => broken("the issuer stops"),
            Err(_) => broken(&format!("the issuer has not answered for {} s", PATIENCE.as_secs())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::at_rest::AtRest;

    #[tokio::test(start_paused = true)]
    async fn a_command_that_waits_too_long_is_not_done_later() {
        let home = tempfile::tempdir().unwrap();
        let mut store = KeyStore::open(home.path(), AtRest::default()).unwrap();
        let (commands, mut taken) = Commands::new();
        let rotate = KeyRequest::Rotate { token_type: None, in_seconds: None };
        let refused = commands.carry_out(rotate.clone()).await.unwrap_err();
        assert!(refused.sentence.contains("20 s") && refused.sentence.contains("key list"), "{refused}");
        let late = taken.recv().await.unwrap();
        assert!(late.carry_out(&mut store, &Schedule::TEST, UnixSeconds(1_000_000)).is_none());
        assert!(store.keys().is_empty());
        drop(taken);
        let refused = commands.carry_out(rotate).await.unwrap_err();
        assert!(refused.sentence.contains("the issuer stops"), "{refused}");
    }
}
