use super::*;
use crate::exchange::Patience;
use tokio::time::timeout;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn exchange() -> Exchange {
    Exchange::new(Patience { answer: Duration::MAX, stream: Duration::MAX })
}

struct Listener {
    places: Places,
    connections: usize,
    sources: SourceLimits,
}

impl Listener {
    fn new(connections: usize) -> Self {
        Self { places: Places::default(), connections, sources: SourceLimits::default() }
    }

    fn bounds(&self) -> Bounds<'_> {
        Bounds { connections: self.connections, sources: &self.sources }
    }

    fn come(&self) -> Result<(Place, Exchange), NoPlace> {
        let exchange = exchange();
        self.places.take(Some(HERE), self.bounds(), &exchange).map(|place| (place, exchange))
    }

    /// Returns the numbers of places held, of connections leaving, and of networks counted.
    fn levels(&self) -> (usize, usize, usize) {
        let taken = self.places.taken.lock();
        (taken.places, taken.leaving, taken.sources.len())
    }
}

async fn is_displaced(exchange: &Exchange) -> bool {
    timeout(Duration::from_millis(1), exchange.displaced()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_place_that_was_kept_and_released_gives_way_as_one_that_came_then() {
    let listener = Listener::new(2);
    let (mut first, released) = listener.come().unwrap();
    first.keep();
    let (_second, older) = listener.come().unwrap();
    first.release(&released);
    first.release(&released); // once
    assert_eq!(listener.levels(), (2, 0, 1));
    let _third = listener.come().unwrap();
    assert!(is_displaced(&older).await && !is_displaced(&released).await);
    let _fourth = listener.come().unwrap();
    assert!(is_displaced(&released).await);
    drop(first);
    assert_eq!(listener.levels().0, 2);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_connection_without_a_request_gives_way() {
    let listener = Listener::new(3);
    let (_first, at_work) = listener.come().unwrap();
    let answering = at_work.begin().await;
    let (second, idle) = listener.come().unwrap();
    let (_third, younger) = listener.come().unwrap();
    let _fourth = listener.come().unwrap();
    assert!(is_displaced(&idle).await && !is_displaced(&younger).await && !is_displaced(&at_work).await);
    assert_eq!(listener.levels(), (3, 1, 1));
    drop(second);
    assert_eq!(listener.levels(), (3, 0, 1));
    drop(answering);
    at_work.flushed();
    let _fifth = listener.come().unwrap();
    assert!(is_displaced(&at_work).await, "it is idle again, and the oldest");
    let late = timeout(Duration::from_secs(1), at_work.begin()).await;
    assert!(late.is_err(), "a request that comes after is not begun");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_answer_gives_way_unless_it_is_streamed() {
    for (streams, gives_way) in [(false, true), (true, false)] {
        let listener = Listener::new(1);
        let (_place, exchange) = listener.come().unwrap();
        let _answering = exchange.begin().await;
        if streams {
            exchange.stream();
        }
        assert_eq!(listener.come().err().unwrap(), NoPlace::Full);
        exchange.set_unread(true);
        assert_eq!(listener.come().is_ok(), gives_way);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_about_to_be_a_tunnel_does_not_give_way() {
    let listener = Listener::new(1);
    let (_place, exchange) = listener.come().unwrap();
    let answering = exchange.begin().await;
    exchange.keep();
    drop(answering);
    exchange.flushed(); // the client may read the answer before the connection's task continues
    assert!(exchange.is_idle());
    assert_eq!(listener.come().err().unwrap(), NoPlace::Full);
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_never_gives_way_and_is_not_counted_for_its_source() {
    let mut listener = Listener::new(2);
    listener.sources.connections = 1;
    let (mut tunnel, _exchange) = listener.come().unwrap();
    assert_eq!(listener.come().err().unwrap(), NoPlace::Source);
    tunnel.keep();
    let (mut second, _exchange) = listener.come().unwrap();
    second.keep();
    assert_eq!(listener.come().err().unwrap(), NoPlace::Full);
    assert_eq!(listener.levels(), (2, 0, 0), "who is refused is not counted");
    drop((tunnel, second));
    assert_eq!(listener.levels(), (0, 0, 0));
}

#[test]
fn a_connection_that_is_attributed_is_counted_for_its_client_alone() {
    let mut listener = Listener::new(3);
    listener.sources.connections = 1;
    let through_balancer = || listener.places.take(None, listener.bounds(), &exchange()).unwrap();
    let (mut first, mut second) = (through_balancer(), through_balancer());
    assert_eq!(listener.levels(), (2, 0, 0));
    first.attribute(HERE, &listener.sources).unwrap();
    assert_eq!(second.attribute(HERE, &listener.sources), Err(NoPlace::Source));
    assert_eq!(listener.come().err().unwrap(), NoPlace::Source);
    first.attribute([192, 0, 2, 2].into(), &listener.sources).unwrap();
    second.attribute(HERE, &listener.sources).unwrap();
    assert_eq!(listener.levels(), (2, 0, 2));
    drop((first, second));
    assert_eq!(listener.levels(), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn who_waits_gets_the_place_that_is_given_back() {
    let listener = Listener::new(1);
    let (mut tunnel, _exchange) = listener.come().unwrap();
    tunnel.keep();
    let exchange = exchange();
    let mut waiting = Box::pin(wait(|| listener.places.take(Some(HERE), listener.bounds(), &exchange)));
    assert!(timeout(Duration::from_secs(60), &mut waiting).await.is_err());
    drop(tunnel);
    waiting.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn fewer_places_leave_open_connections_alone() {
    let mut listener = Listener::new(2);
    let (mut first, mut second) = (listener.come().unwrap().0, listener.come().unwrap().0);
    first.keep();
    second.keep();
    listener.connections = 1;
    drop(first);
    assert_eq!(listener.come().err().unwrap(), NoPlace::Full);
    drop(second);
    assert!(listener.come().is_ok());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_accepted_while_too_many_that_gave_way_are_still_there() {
    let listener = Listener::new(1);
    let mut there: Vec<_> = (0..17).map(|_| listener.come().unwrap()).collect();
    timeout(Duration::from_secs(1), listener.places.settled(1)).await.unwrap();
    there.push(listener.come().unwrap());
    let mut settling = Box::pin(listener.places.settled(1));
    assert!(timeout(Duration::from_secs(60), &mut settling).await.is_err());
    there.remove(0);
    timeout(Duration::from_secs(1), settling).await.unwrap();
}

/// A stream has its connection's socket, so it takes one descriptor where a connection takes two.
#[tokio::test(start_paused = true)]
async fn scarce_descriptors_are_enough_for_twice_as_many_streams() {
    let places = Places::new(5, 2);
    let listener = Listener { places, ..Listener::new(100) };
    let stream = || {
        let mut place = listener.places.take_for(None, listener.bounds(), &exchange())?;
        place.keep();
        Ok::<_, NoPlace>(place)
    };
    let idle: Vec<_> = (0..5).map(|_| listener.come().unwrap()).collect();
    let mut streams: Vec<_> = std::iter::from_fn(|| stream().ok()).collect();
    assert_eq!((streams.len(), listener.levels().0), (10, 10), "idle connections gave way");
    drop(idle);
    assert_eq!(stream().err().unwrap(), NoPlace::Full);
    streams.pop();
    assert_eq!(listener.come().err().unwrap(), NoPlace::Full, "a connection takes two");
    streams.pop();
    drop(listener.come().unwrap());
    streams.clear();
    assert_eq!(
        (0..9)
            .filter_map(|_| listener.come().ok())
            .map(|(mut place, _)| {
                place.keep();
                place
            })
            .collect::<Vec<_>>()
            .len(),
        5
    );
}

#[test]
fn a_bounded_number_of_clients_without_a_place_is_answered() {
    let places = Places::default();
    let answered: Vec<_> = std::iter::from_fn(|| places.leave(80)).take(100).collect();
    assert_eq!(answered.len(), 26);
    drop(answered);
    assert!(places.leave(80).is_some());
}
