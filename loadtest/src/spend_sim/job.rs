//! One client's command in a router: what it asks of which copy, and when the answers decide.

use super::deployment::Route;
use super::router::{Ask, Request};
use super::wire::{self, Answer, Name, Value};

/// Copies of a record in a quorum.
const COPIES: usize = 3;

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) link: usize,
    route: Route,
    request: Request,
    records: Vec<Record>,
}

#[derive(Debug)]
struct Record {
    name: Name,
    /// Those that came, in the order in which they came.
    answers: [Option<Answer>; COPIES],
    count: usize,
    decided: Option<Answer>,
}

/// What follows from an answer.
pub(crate) enum Verdict {
    Open,
    Ask(Ask),
    Decided,
}

impl Job {
    pub(crate) fn get(link: usize, route: Route, names: Vec<Name>) -> Self {
        Self { link, route, request: Request::Get, records: names.into_iter().map(Record::new).collect() }
    }

    pub(crate) fn add(link: usize, route: Route, name: Name, exptime: u64, value: Value) -> Self {
        Self { link, route, request: Request::Add { exptime, value }, records: vec![Record::new(name)] }
    }

    pub(crate) fn first_asks(&self, number: u64) -> Vec<Ask> {
        let copies = if self.goes_to_all() { COPIES } else { 1 };
        let records = self.records.iter().enumerate();
        let ask = |(index, record): (usize, &Record), copy| Ask {
            job: number,
            record: index,
            copy,
            name: Name::clone(&record.name),
            request: self.request.clone(),
        };
        records.flat_map(|record| (0..copies).map(move |copy| ask(record, copy))).collect()
    }

    fn goes_to_all(&self) -> bool {
        match self.route {
            Route::Quorum { reads_fail_over } => !(reads_fail_over && matches!(self.request, Request::Get)),
            Route::Pool | Route::Failover => false,
        }
    }

    pub(crate) fn answer(&mut self, ask: &Ask, answer: Answer) -> Verdict {
        let (to_all, route) = (self.goes_to_all(), self.route);
        let record = &mut self.records[ask.record];
        if record.decided.is_some() {
            return Verdict::Open;
        }
        record.answers[record.count] = Some(answer.clone());
        record.count += 1;
        if to_all {
            record.decided = majority(&record.answers[..record.count]);
        } else {
            let goes_on = match route {
                Route::Pool => false,
                // MissFailoverRoute: the next copy is asked after a miss, too.
                Route::Quorum { .. } => matches!(answer, Answer::Miss | Answer::Error),
                Route::Failover => answer == Answer::Error,
            };
            if goes_on && record.count < route.lists() {
                return Verdict::Ask(Ask { copy: ask.copy + 1, ..ask.clone() });
            }
            record.decided = Some(answer);
        }
        let all = self.records.iter().all(|record| record.decided.is_some());
        if all { Verdict::Decided } else { Verdict::Open }
    }

    pub(crate) fn is_error(&self) -> bool {
        self.records.iter().any(|record| record.decided == Some(Answer::Error))
    }

    /// The reply to the client. `misses`: an error of a server becomes a miss.
    pub(crate) fn reply(&mut self, misses: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let is_get = matches!(self.request, Request::Get);
        let answers: Vec<Answer> = self
            .records
            .iter_mut()
            .map(|record| match record.decided.clone().unwrap_or(Answer::Error) {
                Answer::Error if misses && is_get => Answer::Miss,
                answer => answer,
            })
            .collect();
        if is_get {
            wire::got(self.records.iter().map(|record| &record.name).zip(&answers), &mut out);
        } else {
            wire::added(&answers[0], &mut out);
        }
        out
    }
}

impl Record {
    fn new(name: Name) -> Self {
        Self { name, answers: [const { None }; COPIES], count: 0, decided: None }
    }
}

/// AllMajorityRoute: two answers of the same kind, whatever their values. Three of different kinds are an error.
fn majority(answers: &[Option<Answer>]) -> Option<Answer> {
    let last = answers.last()?.as_ref()?;
    let kind = std::mem::discriminant::<Answer>;
    let same = answers.iter().flatten().filter(|answer| kind(answer) == kind(last)).count();
    if same >= 2 {
        Some(last.clone())
    } else if answers.len() == COPIES {
        Some(Answer::Error)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        Name::from(*b"k")
    }

    /// The reply after these answers, by copy.
    fn reply(mut job: Job, answers: &[Answer], misses: bool) -> Option<String> {
        let mut asks = job.first_asks(1);
        for answer in answers {
            let ask = asks.remove(0);
            match job.answer(&ask, answer.clone()) {
                Verdict::Open => {}
                Verdict::Ask(next) => asks.insert(0, next),
                Verdict::Decided => return String::from_utf8(job.reply(misses)).ok(),
            }
        }
        None
    }

    fn add(route: Route, answers: &[Answer]) -> Option<String> {
        reply(Job::add(0, route, name(), 0, Value::from(*b"v")), answers, false)
    }

    #[test]
    fn a_quorum_decides_by_two_of_the_same_kind() {
        use Answer::{Error, NotStored, Stored};
        let quorum = Route::Quorum { reads_fail_over: false };
        assert_eq!(add(quorum, &[Stored]), None);
        assert_eq!(add(quorum, &[Stored, Stored]).as_deref(), Some("STORED\r\n"));
        assert_eq!(add(quorum, &[Stored, NotStored, NotStored]).as_deref(), Some("NOT_STORED\r\n"));
        assert_eq!(add(quorum, &[Stored, NotStored, Error]).as_deref(), Some("SERVER_ERROR unavailable\r\n"));
        assert_eq!(add(quorum, &[Error, Error]).as_deref(), Some("SERVER_ERROR unavailable\r\n"));
    }

    #[test]
    fn a_miss_goes_on_to_the_next_copy_where_reads_fail_over() {
        let found = Answer::Hit(Value::from(*b"v"));
        let job = |reads_fail_over| Job::get(0, Route::Quorum { reads_fail_over }, vec![name()]);
        let two_empty = [Answer::Miss, Answer::Miss, found];
        assert_eq!(reply(job(true), &two_empty, false).as_deref(), Some("VALUE k 0 1\r\nv\r\nEND\r\n"));
        assert_eq!(reply(job(false), &two_empty, false).as_deref(), Some("END\r\n"));
    }

    #[test]
    fn failover_takes_the_other_server_after_an_error_only() {
        assert_eq!(add(Route::Failover, &[Answer::Error, Answer::Stored]).as_deref(), Some("STORED\r\n"));
        assert_eq!(add(Route::Failover, &[Answer::NotStored]).as_deref(), Some("NOT_STORED\r\n"));
        assert_eq!(add(Route::Pool, &[Answer::Error]).as_deref(), Some("SERVER_ERROR unavailable\r\n"));
    }

    #[test]
    fn an_error_may_be_told_as_a_miss() {
        let job = || Job::get(0, Route::Pool, vec![name()]);
        assert_eq!(reply(job(), &[Answer::Error], true).as_deref(), Some("END\r\n"));
        assert_eq!(reply(job(), &[Answer::Error], false).as_deref(), Some("SERVER_ERROR unavailable\r\n"));
    }
}
