use std::sync::Arc;
use std::time::Instant;
use telaio_model::*;
use telaio_reconcile::PartReconciler;
use telaio_service_proxy::config::*;
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::nftables::desired::*;
use telaio_service_proxy::nftables::target::Kernel;
use telaio_service_proxy::options::LocalhostPorts;
fn cpu()->f64{ let s=std::fs::read_to_string("/proc/self/stat").unwrap(); let f:Vec<&str>=s.rsplit(')').next().unwrap().split_whitespace().collect(); (f[11].parse::<f64>().unwrap()+f[12].parse::<f64>().unwrap())*10.0 }
fn svc(i:u32,n:u32,shift:u32)->ServiceEndpoints{
  let [_,b,c,d]=(i+256).to_be_bytes();
  let mut f=Fixture::new(&format!("s{i}")).cluster_ip([10,96+b,c,d]);
  for e in 0..n { let x=(i*n+e+shift).to_be_bytes(); f=f.remote([10,128|x[1],x[2],x[3]]); }
  f.build()
}
fn main(){
  let a:Vec<u32>=std::env::args().skip(1).map(|x|x.parse().unwrap()).collect();
  let (n,e)=(a[0],a[1]);
  let all:Vec<_>=(0..n).map(|i|svc(i,e,0)).collect();
  let cfg=Arc::new(ProxyConfig{detect_local:DetectLocal::ClusterCidr(vec!["10.128.0.0/9".parse().unwrap()]),..Default::default()});
  for round in 0..3 {
  let (c0,t0)=(cpu(),Instant::now());
  let mut d=Desired::new(cfg.clone(),NodeFacts::default(),LocalhostPorts::default());
  for s in &all { d.set_service(&s.service.key,Some(s.clone())); }
  let t1=t0.elapsed();
  let mut k=Kernel::open(&IpFamily::ALL).unwrap(); 
  telaio_service_proxy::nftables::cleanup().unwrap();
  let td=t0.elapsed();
  let mut r=PartReconciler::new(k);
  r.reconcile(&d).unwrap();
  d.forget_compiled();
  println!("round {round} cold {n}x{e}: compile {t1:?} delete {:?} total wall {:?} cpu {} ms",td-t1, t0.elapsed(), cpu()-c0);
  let mut ts=vec![];
  for j in 0..200u32 { let i=(j*7919)%n; let s=svc(i,e,if j%2==0{5_000_000}else{0}); let t=Instant::now(); let sh=d.set_service(&s.service.key.clone(),Some(s.clone())); assert!(!sh); r.reconcile_part(&[Part::Service(s.service.key.clone())],&d).unwrap(); ts.push(t.elapsed()); }
  ts.sort(); println!("  endpoint change p50 {:?} p99 {:?}",ts[100],ts[197]);
  let mut ts=vec![];
  for j in 0..100u32 { let i=(j*7919)%n; let s=svc(i,e+1,0); let t=Instant::now(); let sh=d.set_service(&s.service.key.clone(),Some(s.clone())); let mut p=vec![Part::Service(s.service.key.clone())]; if sh {p.push(Part::Shared)} r.reconcile_part(&p,&d).unwrap(); ts.push(t.elapsed()); }
  ts.sort(); println!("  count change p50 {:?} p99 {:?}",ts[50],ts[97]);
  let t=Instant::now(); let rep=r.check_drift().unwrap(); println!("  observe {:?} {}",t.elapsed(),rep.count());
  let t=Instant::now(); r.reconcile(&d).unwrap(); println!("  full {:?} rss {}",t.elapsed(), std::fs::read_to_string("/proc/self/status").unwrap().lines().find(|l|l.starts_with("VmRSS")).unwrap());
  }
}
