//! Room on a shared connection, and the request for a tunnel on it.

use super::answer::{Head, HeadError, INTERIM_LIMIT};
use super::shared::{Line, Taken};
use super::{Connect, Tunnel};
use crate::http2::{Http2Stream, Inbox};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::header::{HeaderMap, PROXY_AUTHORIZATION};
use http::{HeaderValue, Method, Request, Version};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::sleep;

/// Room for a tunnel on a connection.
pub struct Seat {
    pub(super) line: Arc<Line>,
    pub(super) sender: SendRequest<Bytes>,
    pub(super) taken: Taken,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seat")
    }
}

/// Whether the proxy of a connection is there, while a tunnel on it is waited for.
pub struct Vigil(Arc<Line>);

impl fmt::Debug for Vigil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vigil")
    }
}

impl Vigil {
    /// Whether the proxy is there, if it was not heard a moment ago. A connection that does not answer takes no more tunnels.
    pub async fn answers(&self) -> bool {
        let answers = self.0.answers().await;
        if !answers {
            self.0.retire();
        }
        answers
    }

    /// Returns when the connection gives no sign of life; looks each time that `pause` is over.
    pub async fn lost(&self, pause: Duration) {
        loop {
            sleep(pause).await;
            if !self.answers().await {
                return;
            }
        }
    }
}

impl Seat {
    /// To find out meanwhile whether an answer can come.
    #[must_use]
    pub fn vigil(&self) -> Vigil {
        Vigil(Arc::clone(&self.line))
    }

    /// Asks for a tunnel. An answer that opens none is followed by its body.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn connect(self, connect: &Connect<'_>) -> Result<(Head, Tunnel), HeadError> {
        let Self { line, sender, taken } = self;
        let broken = |error: h2::Error| HeadError::Broken(error.to_string());
        let request = request(connect).map_err(|error| HeadError::Grammar(error.to_string()))?;
        let mut sender = sender.ready().await.map_err(broken)?;
        let (response, outbox) = sender.send_request(request, false).map_err(broken)?;
        let response = answer(response).await?;
        line.hear();
        let (head, body) = response.into_parts();
        let inbox = Inbox::new(body, None);
        let tunnel = Tunnel::shared(Http2Stream::new(inbox.clone(), outbox), inbox, taken);
        Ok((Head { status: head.status, headers: head.headers }, tunnel))
    }
}

fn request(connect: &Connect<'_>) -> http::Result<Request<()>> {
    let Connect { authority, authorization, more } = connect;
    let mut request = Request::builder().version(Version::HTTP_2).method(Method::CONNECT).uri(*authority);
    if let Some(authorization) = authorization {
        let mut value = HeaderValue::from_str(authorization)?;
        value.set_sensitive(true); // no table of either end remembers it (RFC 7541, section 7.1.3)
        request = request.header(PROXY_AUTHORIZATION, value);
    }
    if let Some((name, value)) = more {
        request = request.header(name, *value);
    }
    request.body(())
}

/// The answer, after some interim ones.
async fn answer(mut response: ResponseFuture) -> Result<http::Response<h2::RecvStream>, HeadError> {
    let mut interim = 0;
    poll_fn(|cx| {
        while let Poll::Ready(Some(Ok(head))) = response.poll_informational(cx) {
            interim += size(head.headers());
            if interim > INTERIM_LIMIT {
                return Poll::Ready(Err(HeadError::NoEnd));
            }
        }
        let answered = pin!(&mut response).poll(cx);
        answered.map(|answered| answered.map_err(|error| HeadError::Broken(error.to_string())))
    })
    .await
}

/// As RFC 9113, section 6.5.2, reckons, with 32 bytes for the status, too.
fn size(headers: &HeaderMap) -> usize {
    32 + headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum::<usize>()
}
