//! What a router answers, and where it sends commands: the rules of mcrouter's routes as `deploy/mcrouter/README.md`
//! and `postern doctor --mcrouter-config` know them. Pure: no time, no network.

/// How a router carries an `add` or a `get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// One pool whose servers own their keys.
    Pool,
    /// The most common reply of three replicas; no two alike is an error.
    AllMajority,
    /// One after the other until one has it. For `get` only.
    MissFailover,
    /// One after the other until one answers.
    Failover,
    /// The first reply that is no error.
    AllFastest,
    /// The first replica's reply; the others are written as well.
    AllInitial,
    /// The worst of all replies.
    #[cfg_attr(not(test), expect(dead_code, reason = "it never admits twice; its rule is tested"))]
    AllSync,
}

/// The reply of one server, or of the route, to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Stored,
    NotStored,
    /// A record, and the attempt that wrote it.
    Hit(u8),
    Miss,
    /// No connection, no answer in time: `SERVER_ERROR`.
    Error,
}

/// What is to be done after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Wait,
    /// Ask the next replica.
    Next,
    Answer(Reply),
}

/// The replies of one command so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathered {
    route: Route,
    children: u8,
    sent: u8,
    /// Replicas whose reply, or whose failure, has come.
    settled: u8,
    stored: u8,
    not_stored: u8,
    hits: u8,
    misses: u8,
    errors: u8,
    hit: u8,
}

impl Gathered {
    pub(crate) fn new(route: Route, children: usize) -> Self {
        let children = if route == Route::Pool { 1 } else { children as u8 };
        Self {
            route,
            children,
            sent: 0,
            settled: 0,
            stored: 0,
            not_stored: 0,
            hits: 0,
            misses: 0,
            errors: 0,
            hit: 0,
        }
    }

    /// The replicas to send to now: all at once, or the next one.
    pub(crate) fn next_replicas(&mut self) -> std::ops::Range<u8> {
        let one = matches!(self.route, Route::Pool | Route::MissFailover | Route::Failover);
        let from = self.sent;
        self.sent = if one { from + 1 } else { self.children };
        from..self.sent
    }

    /// Takes the reply of a replica; the second one of the same (an answer after it was given up) changes nothing.
    pub(crate) fn take(&mut self, child: u8, reply: Reply) -> Step {
        if self.settled & (1 << child) != 0 {
            return Step::Wait;
        }
        self.settled |= 1 << child;
        match reply {
            Reply::Stored => self.stored += 1,
            Reply::NotStored => self.not_stored += 1,
            Reply::Hit(attempt) => {
                self.hits += 1;
                self.hit = attempt;
            }
            Reply::Miss => self.misses += 1,
            Reply::Error => self.errors += 1,
        }
        let all = self.settled.count_ones() == u32::from(self.children);
        match self.route {
            Route::Pool => Step::Answer(reply),
            Route::AllInitial if child == 0 => Step::Answer(reply),
            Route::AllInitial => Step::Wait,
            Route::AllFastest if reply != Reply::Error || all => Step::Answer(reply),
            Route::AllFastest => Step::Wait,
            Route::Failover if reply == Reply::Error && !all => Step::Next,
            Route::Failover => Step::Answer(reply),
            Route::MissFailover => match reply {
                Reply::Hit(_) => Step::Answer(reply),
                _ if !all => Step::Next,
                _ => Step::Answer(if self.misses > 0 { Reply::Miss } else { Reply::Error }),
            },
            Route::AllMajority => match self.majority() {
                Some(reply) => Step::Answer(reply),
                None if all => Step::Answer(Reply::Error),
                None => Step::Wait,
            },
            Route::AllSync if !all => Step::Wait,
            Route::AllSync if self.errors > 0 => Step::Answer(Reply::Error),
            Route::AllSync if self.not_stored > 0 => Step::Answer(Reply::NotStored),
            Route::AllSync => Step::Answer(reply),
        }
    }

    fn majority(&self) -> Option<Reply> {
        let needed = self.children / 2 + 1;
        [
            (self.stored, Reply::Stored),
            (self.not_stored, Reply::NotStored),
            (self.hits, Reply::Hit(self.hit)),
            (self.misses, Reply::Miss),
            (self.errors, Reply::Error),
        ]
        .into_iter()
        .find(|(count, _)| *count >= needed)
        .map(|(_, reply)| reply)
    }
}

#[cfg(test)]
impl Route {
    /// mcrouter's name of it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pool => "PoolRoute",
            Self::AllMajority => "AllMajorityRoute",
            Self::MissFailover => "MissFailoverRoute",
            Self::Failover => "FailoverRoute",
            Self::AllFastest => "AllFastestRoute",
            Self::AllInitial => "AllInitialRoute",
            Self::AllSync => "AllSyncRoute",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reply::{Error, Hit, Miss, NotStored, Stored};

    /// The answer to these replies in the order of the replicas, and after how many of them it stands.
    fn answer(route: Route, replies: &[Reply]) -> (Reply, usize) {
        let mut gathered = Gathered::new(route, replies.len());
        let mut replicas = gathered.next_replicas();
        for (index, reply) in replies.iter().enumerate() {
            assert!(replicas.contains(&(index as u8)), "{route:?} was not sent to {index}");
            match gathered.take(index as u8, *reply) {
                Step::Answer(answer) => return (answer, index + 1),
                Step::Next => replicas = gathered.next_replicas(),
                Step::Wait => {}
            }
        }
        panic!("{route:?} does not answer {replies:?}")
    }

    #[test]
    fn a_majority_is_two_of_three_and_a_tie_is_an_error() {
        let of = |replies: [Reply; 3]| answer(Route::AllMajority, &replies);
        assert_eq!(of([Stored, Stored, NotStored]), (Stored, 2));
        assert_eq!(of([Stored, NotStored, NotStored]), (NotStored, 3));
        assert_eq!(of([Error, Stored, Stored]), (Stored, 3));
        assert_eq!(of([Stored, NotStored, Error]), (Error, 3));
        assert_eq!(of([Error, Error, Stored]), (Error, 2));
        assert_eq!(of([Miss, Hit(1), Hit(2)]), (Hit(2), 3));
    }

    #[test]
    fn the_other_routes() {
        assert_eq!(answer(Route::Pool, &[NotStored]), (NotStored, 1));
        assert_eq!(answer(Route::Failover, &[Error, Stored]), (Stored, 2));
        assert_eq!(answer(Route::Failover, &[Error, Error]), (Error, 2));
        assert_eq!(answer(Route::AllFastest, &[Error, Stored, NotStored]), (Stored, 2));
        assert_eq!(answer(Route::AllInitial, &[Stored, NotStored, NotStored]), (Stored, 1));
        assert_eq!(answer(Route::AllSync, &[Stored, NotStored, Stored]), (NotStored, 3));
        assert_eq!(answer(Route::AllSync, &[Stored, Error, NotStored]), (Error, 3));
        assert_eq!(answer(Route::MissFailover, &[Miss, Error, Hit(4)]), (Hit(4), 3));
        assert_eq!(answer(Route::MissFailover, &[Error, Miss, Miss]), (Miss, 3));
        assert_eq!(answer(Route::MissFailover, &[Error, Error, Error]), (Error, 3));
    }

    #[test]
    fn an_answer_after_it_was_given_up_does_not_count_twice() {
        let mut gathered = Gathered::new(Route::AllMajority, 3);
        assert_eq!(gathered.next_replicas(), 0..3);
        assert_eq!(gathered.take(0, Error), Step::Wait);
        assert_eq!(gathered.take(0, Stored), Step::Wait);
        assert_eq!(gathered.take(1, Stored), Step::Wait);
        assert_eq!(gathered.take(2, NotStored), Step::Answer(Error));
    }
}
