//! List and revoke locks, restrict a directory, and watch a lock.

use dibs::{Client, Error, Kind, Rule, WatchEvent};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(std::env::var("DIBS_URL").expect("DIBS_URL"))?;
    for status in client.list("jobs/").await? {
        println!("{:?}: {} hold it, {} wait", status.name, status.holding, status.waiting);
    }
    client.revoke(Kind::Lock, "jobs/nightly", "maintenance").await?;
    client.restrict("jobs/", &Rule::default()).await?;
    let mut news = client.watch(Kind::Lock, "jobs/nightly")?;
    while let Some(news) = news.next().await {
        if let WatchEvent::Status(status) = news? {
            println!("{} hold it", status.holding);
            break;
        }
    }
    Ok(())
}
