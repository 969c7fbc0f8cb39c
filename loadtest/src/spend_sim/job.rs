//! One client's command in a router: what it asks of which server, and the reply once all have answered.

use super::wire::{self, Answer, Name, Value};

/// One record's command, on behalf of a client's.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) job: u64,
    /// Which of the job's records.
    pub(crate) record: usize,
    pub(crate) name: Name,
    pub(crate) request: Request,
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    Get,
    Add { exptime: u64, value: Value },
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) link: usize,
    request: Request,
    records: Vec<(Name, Option<Answer>)>,
}

impl Job {
    pub(crate) fn get(link: usize, names: Vec<Name>) -> Self {
        Self { link, request: Request::Get, records: names.into_iter().map(|name| (name, None)).collect() }
    }

    pub(crate) fn add(link: usize, name: Name, exptime: u64, value: Value) -> Self {
        Self { link, request: Request::Add { exptime, value }, records: vec![(name, None)] }
    }

    pub(crate) fn first_asks(&self, number: u64) -> Vec<Ask> {
        let records = self.records.iter().enumerate();
        let ask = |(record, (name, _)): (usize, &(Name, _))| Ask {
            job: number,
            record,
            name: Name::clone(name),
            request: self.request.clone(),
        };
        records.map(ask).collect()
    }

    /// True when this was the last answer.
    pub(crate) fn answer(&mut self, ask: &Ask, answer: Answer) -> bool {
        self.records[ask.record].1.get_or_insert(answer);
        self.records.iter().all(|(_, answer)| answer.is_some())
    }

    pub(crate) fn is_error(&self) -> bool {
        self.records.iter().any(|(_, answer)| *answer == Some(Answer::Error))
    }

    /// The reply to the client. `misses`: an error of a server becomes a miss.
    pub(crate) fn reply(&self, misses: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let is_get = matches!(self.request, Request::Get);
        let answers: Vec<Answer> = self
            .records
            .iter()
            .map(|(_, answer)| match answer.clone().unwrap_or(Answer::Error) {
                Answer::Error if misses && is_get => Answer::Miss,
                answer => answer,
            })
            .collect();
        if is_get {
            wire::got(self.records.iter().map(|(name, _)| name).zip(&answers), &mut out);
        } else {
            wire::added(&answers[0], &mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_may_be_told_as_a_miss() {
        let mut job = Job::get(0, vec![Name::from(*b"a"), Name::from(*b"b")]);
        let asks = job.first_asks(1);
        assert!(!job.answer(&asks[0], Answer::Hit(Value::from(*b"v"))));
        assert!(job.answer(&asks[1], Answer::Error) && job.is_error());
        assert_eq!(job.reply(true), b"VALUE a 0 1\r\nv\r\nEND\r\n");
        assert_eq!(job.reply(false), b"SERVER_ERROR unavailable\r\n");
    }
}
