//! A process of the torture that `tests/sdk` runs: takes turns until its standard input closes.
//!
//! Its orders, its history and its row on the board are those of `dibs.testing.torture`. It fails if a
//! lost lease interrupts its task later than it must, although the process was not paused.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dibs::arithmetic::{margin, now};
use dibs::{Client, Lease, LossReason};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

const PRIMITIVES: [&str; 3] = ["lock", "semaphore", "rwlock"];
const CAPACITY: u64 = 3;
const MANY: u64 = 1 << 20;
const TOGETHER: u32 = 2;

struct Worker {
    orders: Value,
    client: Client,
    history: Mutex<File>,
    board: File,
    /// Leases held of each primitive, cycles, and outages.
    row: Mutex<([u32; 3], u32, u32)>,
    wanted: Vec<(String, AtomicU32)>,
    protected: Mutex<HashMap<String, Arc<Mutex<File>>>>,
    stopping: AtomicBool,
    leases: AtomicU64,
    /// The longest recent gap in the time of this process, in microseconds, and when it ended.
    paused: Mutex<(f64, f64)>,
}

/// A lease, as the history knows it.
struct Held {
    lease: Lease,
    number: u64,
    key: String,
    primitive: usize,
}

impl Worker {
    fn number(&self, name: &str) -> f64 {
        self.orders[name].as_f64().unwrap()
    }

    fn record(&self, mut event: Value) {
        event["process"] = std::process::id().into();
        let line = format!("{event}\n");
        self.history.lock().unwrap().write_all(line.as_bytes()).unwrap();
    }

    fn of(&self, held: &Held, what: &str, at: f64, more: Value) {
        let name = format!("{}-{}", std::process::id(), held.number);
        let mut event = json!({"at": at, "what": what, "key": held.key, "lease": name,
            "token": held.lease.token()});
        for (field, value) in more.as_object().unwrap() {
            event[field] = value.clone();
        }
        self.record(event);
    }

    fn show(&self, primitive: usize, change: i32, cycles: u32, outages: u32) {
        let mut row = self.row.lock().unwrap();
        row.0[primitive] = row.0[primitive].checked_add_signed(change).unwrap();
        (row.1, row.2) = (row.1 + cycles, row.2 + outages);
        let bits = (0..3).filter(|each| row.0[*each] > 0).map(|each| 1 << each).sum::<u32>();
        let bytes = [bits, row.1, row.2].map(u32::to_ne_bytes).concat();
        self.board.write_all_at(&bytes, self.orders["number"].as_u64().unwrap() * 12).unwrap();
    }

    fn cut_off(&self) {
        self.record(json!({"at": now(), "what": "disturbed"}));
        self.show(0, 0, 0, 1);
    }

    /// Write the protected files of each slot, as `ProtectedFiles` does.
    fn write(&self, held: &Held) {
        let name = held.key.rsplit('/').next().unwrap();
        let slots = held.lease.slots();
        let mut units: Vec<_> = slots.iter().map(|slot| format!("{name}-{slot}")).collect();
        if units.is_empty() {
            units.push(format!("{name}-all"));
        }
        for unit in units {
            for fenced in [false, true] {
                let resource = format!("{}-{unit}", if fenced { "fenced" } else { "unfenced" });
                let path = PathBuf::from(self.orders["folder"].as_str().unwrap()).join(&resource);
                let open = || {
                    OpenOptions::new()
                        .read(true)
                        .write(true)
                        .create(true)
                        .truncate(false)
                        .open(&path)
                };
                let mut known = self.protected.lock().unwrap();
                let new = || Arc::new(Mutex::new(open().unwrap()));
                let file = known.entry(resource.clone()).or_insert_with(new).clone();
                drop(known);
                let file = file.lock().unwrap();
                flock(&*file, FlockOperation::LockExclusive).unwrap();
                let mut bytes = [0; 20];
                let newest = match file.read_exact_at(&mut bytes, 0) {
                    Ok(()) => std::str::from_utf8(&bytes).unwrap().parse().unwrap(),
                    Err(_) => 0,
                };
                let token = held.lease.token();
                if !fenced || token >= newest {
                    file.write_all_at(format!("{token:020}").as_bytes(), 0).unwrap();
                    let slots = json!({"resource": resource, "slots": held.lease.slots()});
                    self.of(held, "wrote", now(), slots);
                }
                flock(&*file, FlockOperation::Unlock).unwrap();
            }
        }
    }

    fn renewed(&self, held: &Held) {
        let at = now();
        let left = held.lease.remaining().as_secs_f64();
        if left > 0.0 {
            self.of(held, "renewed", at, json!({"until": at + left}));
        }
    }

    async fn take_turns(self: Arc<Self>, seed: u64) {
        let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        while !self.stopping.load(SeqCst) {
            let (name, wanted) = &self.wanted[draw.below(self.wanted.len() as u64) as usize];
            if wanted.fetch_add(1, SeqCst) < TOGETHER {
                self.take(name, &mut draw).await;
            } else {
                tokio::task::yield_now().await;
            }
            wanted.fetch_sub(1, SeqCst);
        }
    }

    /// Acquire, check, write, release.
    async fn take(&self, name: &str, draw: &mut Draw) {
        let primitive = PRIMITIVES.iter().position(|each| name.starts_with(each)).unwrap();
        let full = format!("{}{name}", self.orders["prefix"].as_str().unwrap());
        let key = format!("{}:{full}", PRIMITIVES[primitive]);
        let (ttl, wait) = (seconds(self.number("ttl")), seconds(self.number("wait")));
        let writes = primitive != 2 || draw.part() > 0.6;
        let invoked = now();
        self.record(json!({"at": invoked, "what": "asked", "key": key}));
        let (mut units, mut capacity) = (1, 1);
        let found = match primitive {
            0 => self.client.lock(full).ttl(ttl).wait(wait).acquire().await,
            1 => {
                (units, capacity) = (1 + draw.below(10) / 6, CAPACITY);
                let pool = self.client.semaphore(full, CAPACITY as u32).units(units as u32);
                pool.ttl(ttl).wait(wait).acquire().await
            }
            _ => {
                (units, capacity) = (if writes { MANY } else { 1 }, MANY);
                let lock = self.client.rwlock(full).ttl(ttl).wait(wait);
                if writes { lock.write() } else { lock.read() }.acquire().await
            }
        };
        let lease = match found {
            Ok(lease) => lease,
            Err(error) if error.is_held() => {
                return self.record(
                    json!({"at": now(), "what": "gave_up", "key": key, "invoked": invoked}),
                );
            }
            Err(error) if error.is_unavailable() => return self.cut_off(),
            Err(error) => fail(&format!("an acquire failed: {error}")),
        };
        let held = Held { lease, number: self.leases.fetch_add(1, SeqCst), key, primitive };
        let at = now();
        let until = at + held.lease.remaining().as_secs_f64();
        let slots = held.lease.slots();
        let more = json!({"invoked": invoked, "until": until, "units": units, "capacity": capacity,
            "slots": slots});
        self.of(&held, "granted", at, more);
        self.show(held.primitive, 1, 0, 0);
        let stopped = Stopped(None);
        match held.lease.run(self.work(&held, writes, draw, stopped)).await {
            Ok(()) => {}
            Err(error) if error.is_lost() => {}
            Err(error) => fail(&format!("a body ended with {error}")),
        }
        self.renewed(&held);
        self.of(&held, "releasing", now(), json!({}));
        self.show(held.primitive, -1, 1, 0);
        if held.lease.release().await.is_err_and(|error| error.is_unavailable()) {
            self.cut_off();
        }
    }

    async fn work(&self, held: &Held, writes: bool, draw: &mut Draw, mut stopped: Stopped<'_>) {
        stopped.0 = Some((self, held));
        let ttl = self.number("ttl");
        for _ in 0..1 + draw.below(3) {
            let at = now();
            if held.lease.ensure(Duration::ZERO).is_err() {
                return stopped.0 = None;
            }
            self.renewed(held);
            self.of(held, "believed", at, json!({}));
            let length = match draw.below(1000) {
                0..750 => 0.0,
                750..990 => 0.002,
                990..998 => 0.3 * ttl,
                _ => 1.2 * ttl,
            };
            tokio::time::sleep(seconds(length)).await;
            if writes {
                self.write(held);
            }
        }
        stopped.0 = None;
    }
}

/// Notes when the body is dropped because of a loss.
struct Stopped<'a>(Option<(&'a Worker, &'a Held)>);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let Some((worker, held)) = self.0 else { return };
        let is_expiry = held.lease.loss().is_some_and(|loss| loss.reason == LossReason::Expired);
        let late = now() - dibs::arithmetic::deadline(&held.lease);
        let (gap, ended) = *worker.paused.lock().unwrap();
        let allowed = margin(worker.number("ttl")) / 2.0;
        let was_paused = now() - ended < late + gap + 1.0 && gap > allowed / 2.0;
        if is_expiry && late > allowed && !was_paused {
            fail(&format!("a loss was reported {late:.3} s after its deadline (gap {gap:.3})"));
        }
    }
}

/// Random numbers (xorshift).
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn part(&mut self) -> f64 {
        self.below(1000) as f64 / 1000.0
    }
}

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number)
}

fn fail(why: &str) -> ! {
    eprintln!("torture worker: {why}");
    exit(3)
}

#[tokio::main]
async fn main() {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    let orders: Value = serde_json::from_str(&line).unwrap();
    let kill = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(kill).unwrap();
    let folder = PathBuf::from(orders["folder"].as_str().unwrap());
    let history = format!("history-{}-{}.jsonl", orders["number"], orders["seed"]);
    let history = OpenOptions::new().create(true).append(true).open(folder.join(history));
    let board = OpenOptions::new().read(true).write(true).open(folder.join("board")).unwrap();
    let (number, mut row) = (orders["number"].as_u64().unwrap(), [0; 12]);
    board.read_exact_at(&mut row, number * 12).unwrap();
    let count = |at: usize| u32::from_ne_bytes(row[at..at + 4].try_into().unwrap());
    let names = orders["names"].as_array().unwrap().iter();
    let worker = Arc::new(Worker {
        client: Client::connect(orders["url"].as_str().unwrap()).unwrap(),
        history: Mutex::new(history.unwrap()),
        board,
        row: Mutex::new(([0; 3], count(4), count(8))),
        wanted: names.map(|name| (name.as_str().unwrap().into(), AtomicU32::new(0))).collect(),
        protected: Mutex::default(),
        stopping: AtomicBool::new(false),
        leases: AtomicU64::new(1),
        paused: Mutex::new((0.0, 0.0)),
        orders,
    });
    worker.show(0, 0, 0, 0); // the one before may have died a holder
    let (leash, pulse) = (worker.clone(), worker.clone());
    thread::spawn(move || {
        let mut rest = [0; 64];
        while std::io::stdin().read(&mut rest).is_ok_and(|count| count > 0) {}
        leash.stopping.store(true, SeqCst);
    });
    thread::spawn(move || {
        let mut last = now();
        loop {
            thread::sleep(Duration::from_millis(5));
            let at = now();
            let mut paused = pulse.paused.lock().unwrap();
            if at - last > paused.0 || at - paused.1 > 5.0 {
                *paused = (at - last, at);
            }
            last = now();
        }
    });
    let seed = worker.orders["seed"].as_u64().unwrap() * 1000;
    let tasks = worker.orders["tasks"].as_u64().unwrap();
    let turns: Vec<_> =
        (0..tasks).map(|each| tokio::spawn(worker.clone().take_turns(seed + each))).collect();
    for each in turns {
        if each.await.is_err() {
            exit(4);
        }
    }
    worker.client.flush(Duration::from_secs(1)).await;
}
