//! The addresses of a name, which are two queries to a name server. A server may answer one of them at once and the other late or
//! never, so neither answer waits for the other (RFC 8305, section 3).

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;

/// Time that IPv4 addresses wait for IPv6 addresses (RFC 8305, section 8: the recommended resolution delay).
pub const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// Pending addresses of one family; empty if the name has none.
type Asked<'a, A> = Pin<Box<dyn Future<Output = io::Result<Vec<A>>> + Send + 'a>>;

/// The addresses of a name as they arrive, those of IPv6 first.
pub struct Families<'a, A> {
    delay: Duration,
    v6: Family<'a, A>,
    v4: Family<'a, A>,
    error: Option<io::Error>,
}

struct Family<'a, A> {
    asked: Option<Asked<'a, A>>,
    found: Vec<A>,
}

impl<'a, A: Clone> Families<'a, A> {
    /// Queries both families, beginning with the first wait. `delay` is the time that IPv4 addresses wait for IPv6 addresses.
    pub fn asked(
        delay: Duration,
        v6: impl Future<Output = io::Result<Vec<A>>> + Send + 'a,
        v4: impl Future<Output = io::Result<Vec<A>>> + Send + 'a,
    ) -> Self {
        let family = |asked: Asked<'a, A>| Family { asked: Some(asked), found: Vec::new() };
        Self { delay, v6: family(Box::pin(v6)), v4: family(Box::pin(v4)), error: None }
    }

    /// Holds addresses that need no query, in their order.
    pub const fn known(addresses: Vec<A>) -> Self {
        let v6 = Family { asked: None, found: addresses };
        Self { delay: Duration::ZERO, v6, v4: Family { asked: None, found: Vec::new() }, error: None }
    }

    /// Waits for the first addresses that `judge` accepts, and returns its result: for both families, if both arrive within the
    /// delay. `None` if it accepts none, and no more will arrive. Cancel safe.
    pub async fn first<T>(&mut self, mut judge: impl FnMut(&[A]) -> Option<T>) -> Option<T> {
        loop {
            let found = self.found();
            if !found.is_empty()
                && let Some(useful) = judge(&found)
            {
                if self.v6.asked.is_none() || timeout(self.delay, self.next()).await.is_err() {
                    return Some(useful);
                }
                return judge(&self.found());
            }
            if !self.next().await {
                return None;
            }
        }
    }

    /// Waits for the addresses that have not arrived yet; empty if none are awaited. Cancel safe.
    pub async fn rest(&mut self) -> Vec<A> {
        let (v6, v4) = (self.v6.found.len(), self.v4.found.len());
        while self.next().await {}
        [&self.v6.found[v6..], &self.v4.found[v4..]].concat()
    }

    /// Returns all addresses that have arrived.
    pub fn found(&self) -> Vec<A> {
        [&self.v6.found[..], &self.v4.found[..]].concat()
    }

    pub const fn are_complete(&self) -> bool {
        self.v6.asked.is_none() && self.v4.asked.is_none()
    }

    /// Takes the resolver's error, if it reported one.
    pub fn error(&mut self) -> io::Error {
        let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        self.error.take().unwrap_or_else(none)
    }

    /// Waits until a family has ended; `false` if both had.
    async fn next(&mut self) -> bool {
        if self.are_complete() {
            return false;
        }
        poll_fn(|cx| {
            let ended = [self.v6.poll(cx, &mut self.error), self.v4.poll(cx, &mut self.error)];
            if ended.contains(&true) { Poll::Ready(true) } else { Poll::Pending }
        })
        .await
    }
}

impl<A> Family<'_, A> {
    /// `true` if the family has just ended.
    fn poll(&mut self, cx: &mut Context<'_>, error: &mut Option<io::Error>) -> bool {
        let Some(Poll::Ready(answer)) = self.asked.as_mut().map(|asked| asked.as_mut().poll(cx)) else {
            return false;
        };
        self.asked = None;
        match answer {
            Ok(found) => self.found = found,
            Err(failed) => *error = Some(failed),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::time::{Instant, sleep};

    /// A name server's answer for one family, after this many milliseconds; `None` for no answer.
    type Does = Option<(u64, Result<&'static [u8], ()>)>;

    async fn answer(does: Does) -> io::Result<Vec<u8>> {
        let Some((after, answer)) = does else { return pending().await };
        sleep(Duration::from_millis(after)).await;
        answer.map(<[u8]>::to_vec).map_err(|()| io::Error::other("refused"))
    }

    fn asked(v6: Does, v4: Does) -> Families<'static, u8> {
        Families::asked(RESOLUTION_DELAY, answer(v6), answer(v4))
    }

    /// IPv6 addresses are 6 and 66, IPv4 addresses are 4 and 44; 44 and 66 are not accepted.
    #[tokio::test(start_paused = true)]
    async fn the_first_useful_answer_is_used_and_waits_for_the_other_as_the_rfc_says() {
        const LATE: Does = Some((3000, Ok(&[6])));
        for (v6, v4, expected, after) in [
            (Some((1, Ok(&[6][..]))), Some((1, Ok(&[4][..]))), Some(vec![6, 4]), 1),
            (Some((1, Ok(&[6]))), Some((9, Ok(&[4]))), Some(vec![6]), 1),
            (Some((9, Ok(&[6]))), Some((1, Ok(&[4]))), Some(vec![6, 4]), 9),
            (Some((1, Ok(&[6]))), None, Some(vec![6]), 1),
            (None, Some((1, Ok(&[4]))), Some(vec![4]), 51),
            (LATE, Some((1, Ok(&[4]))), Some(vec![4]), 51),
            (Some((9, Ok(&[]))), Some((1, Ok(&[4]))), Some(vec![4]), 9),
            (Some((9, Err(()))), Some((1, Ok(&[4]))), Some(vec![4]), 9),
            (Some((1, Err(()))), Some((900, Ok(&[4]))), Some(vec![4]), 900),
            (LATE, Some((1, Ok(&[44]))), Some(vec![6, 44]), 3000),
            (Some((1, Ok(&[66]))), Some((9, Ok(&[4]))), Some(vec![66, 4]), 9),
            (Some((1, Ok(&[66]))), Some((9, Ok(&[44]))), None, 9),
            (Some((1, Ok(&[]))), Some((9, Err(()))), None, 9),
        ] {
            let began = Instant::now();
            let judge = |found: &[u8]| (!found.iter().all(|each| *each > 9)).then(|| found.to_vec());
            let first = asked(v6, v4).first(judge).await;
            assert_eq!((first, began.elapsed().as_millis()), (expected, after), "{v6:?} {v4:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_is_the_rest_even_for_a_caller_that_stopped_waiting() {
        let mut families = asked(Some((3000, Ok(&[6]))), Some((1, Ok(&[4]))));
        assert_eq!(families.first(|found| Some(found.to_vec())).await, Some(vec![4]));
        timeout(Duration::from_secs(1), families.rest()).await.unwrap_err();
        assert_eq!(
            (families.rest().await, families.found(), families.rest().await),
            (vec![6], vec![6, 4], vec![])
        );
        let mut failed = asked(Some((1, Ok(&[]))), Some((9, Err(()))));
        assert!(failed.first(|_| Some(())).await.is_none());
        assert_eq!(
            [failed.error().to_string(), failed.error().to_string()],
            ["refused", "the name has no address"]
        );
    }
}
