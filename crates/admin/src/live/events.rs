//! The stream of snapshots: server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>).

use super::Live;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{Stream, unfold};
use http_body::Frame;
use std::convert::Infallible;
use tokio::sync::watch;

/// The events of one browser: `history` first, then a `snapshot` a second. It gets the latest when it is slow, and never
/// a queue of old ones. Ends with the process.
pub fn events(live: &Live) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + use<> {
    let (mut snapshots, history) = (live.subscribe(), live.history());
    snapshots.mark_changed(); // the present one comes at once
    let first = Bytes::from(format!("retry: 1000\nevent: history\ndata: {history}\n\n"));
    unfold((Some(first), snapshots), async |(first, mut snapshots)| {
        let event = match first {
            Some(history) => history,
            None => snapshot(&mut snapshots).await?,
        };
        Some((Ok(Frame::data(event)), (None, snapshots)))
    })
}

async fn snapshot(snapshots: &mut watch::Receiver<Bytes>) -> Option<Bytes> {
    snapshots.changed().await.ok()?;
    let json = snapshots.borrow_and_update().clone();
    let mut event = BytesMut::with_capacity(json.len() + 32);
    event.put_slice(b"event: snapshot\ndata: "); // JSON as it is written here has no line break
    event.put_slice(&json);
    event.put_slice(b"\n\n");
    Some(event.freeze())
}
