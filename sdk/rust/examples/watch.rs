//! Show who holds a lock, now and after each change.
//!
//! `DIBS_URL=http://127.0.0.1:5327 DIBS_API_KEY=dibs_… cargo run --example watch -- jobs/nightly`

use dibs::{Kind, WatchEvent};

#[tokio::main]
async fn main() -> Result<(), dibs::Error> {
    let name = std::env::args().nth(1).unwrap_or("examples/report".into());
    let url = std::env::var("DIBS_URL").unwrap_or("http://127.0.0.1:5327".into());
    let mut news = dibs::Client::connect(url)?.watch(Kind::Lock, &name)?;
    while let Some(news) = news.next().await {
        match news? {
            WatchEvent::Event(event) => println!("{} by {}", event.what, event.owner),
            WatchEvent::Status(status) => {
                let holders: Vec<_> = status.holders.iter().map(|each| &each.owner).collect();
                println!("{name}: held by {holders:?}, {} wait", status.waiting);
            }
            _ => {}
        }
    }
    Ok(())
}
