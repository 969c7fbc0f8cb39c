//! A test's name server, which answers each family of each name as the test specifies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Delay of a late answer: within the five seconds that a resolver waits.
pub const LATE: Duration = Duration::from_secs(4);

/// A name server's reaction to a question.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    Answer(IpAddr),
    AnswerLate(IpAddr),
    /// There is such a name, and it has no address of the family.
    SayNone,
    /// There is no such name.
    SayNoName,
    /// SERVFAIL
    Fail,
    Drop,
    /// Bytes that are no message.
    SendNoise,
    /// An answer to a question of another number.
    MistakeNumber,
    /// An answer to a question for another name.
    MistakeName,
    /// A truncated answer, from a server that is not reached over TCP.
    CutOff,
}

/// A family of addresses that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V6,
    V4,
}

/// A name server of UDP.
pub struct NameServer {
    pub address: SocketAddr,
    questions: Arc<Mutex<Vec<(String, Family)>>>,
}

impl NameServer {
    /// On an address with the port 53, where resolv.conf(5) has to name it, or any.
    pub fn start(address: (Ipv4Addr, u16), does: impl Fn(&str, Family) -> Does + Send + 'static) -> Self {
        let socket = Arc::new(UdpSocket::bind(address).unwrap());
        let address = socket.local_addr().unwrap();
        let questions = Arc::<Mutex<Vec<_>>>::default();
        let noted = Arc::clone(&questions);
        std::thread::spawn(move || serve(&socket, &noted, does));
        Self { address, questions }
    }

    /// Returns the questions so far.
    pub fn asked(&self) -> Vec<(String, Family)> {
        self.questions.lock().unwrap().clone()
    }
}

/// RFC 1035, section 4.
fn serve(socket: &Arc<UdpSocket>, noted: &Mutex<Vec<(String, Family)>>, does: impl Fn(&str, Family) -> Does) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        let (mut labels, mut at) = (Vec::new(), 12);
        while query[at] > 0 {
            let end = at + 1 + usize::from(query[at]);
            labels.push(String::from_utf8(query[at + 1..end].to_vec()).unwrap());
            at = end;
        }
        let question = &query[..(at + 5).min(length)];
        let family = match question[at + 1..at + 3] {
            [0, 1] => Family::V4,
            [0, 28] => Family::V6,
            _ => continue,
        };
        let name = labels.join(".");
        let does = does(&name, family);
        noted.lock().unwrap().push((name, family));
        let (rcode, address, late) = match does {
            Does::Answer(address) => (0, Some(address), false),
            Does::AnswerLate(address) => (0, Some(address), true),
            Does::SayNone | Does::SendNoise | Does::MistakeNumber | Does::MistakeName | Does::CutOff => {
                (0, None, false)
            }
            Does::Fail => (2, None, false),
            Does::SayNoName => (3, None, false),
            Does::Drop => continue,
        };
        let mut answer = question.to_vec();
        answer[2..12].copy_from_slice(&[
            0x81,
            0x80 | rcode,
            0,
            1,
            0,
            u8::from(address.is_some()),
            0,
            0,
            0,
            0,
        ]);
        let octets = match address {
            Some(IpAddr::V4(address)) => address.octets().to_vec(),
            Some(IpAddr::V6(address)) => address.octets().to_vec(),
            None => Vec::new(),
        };
        if address.is_some() {
            answer.extend([0xc0, 12]);
            answer.extend(&question[at + 1..at + 5]);
            answer.extend([0, 0, 0, 0, 0, octets.len() as u8]);
            answer.extend(octets);
        }
        match does {
            Does::SendNoise => answer = b"no message".to_vec(),
            Does::MistakeNumber => answer[1] ^= 1,
            Does::MistakeName => answer[13] ^= 1,
            Does::CutOff => answer[2] |= 2,
            _ => {}
        }
        let socket = Arc::clone(socket);
        let send = move || _ = socket.send_to(&answer, from);
        if late {
            std::thread::spawn(move || {
                std::thread::sleep(LATE);
                send();
            });
        } else {
            send();
        }
    }
}
