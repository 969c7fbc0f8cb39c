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

    /// The reply to the client. `misses`: an error of a server is told as a miss.
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
