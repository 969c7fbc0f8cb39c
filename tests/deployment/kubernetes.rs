//! deploy/kubernetes.

use super::examples::example;
use super::{assert_variable_is_known, deploy, items, port, text, yaml};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Every object that is applied, ConfigMaps aside.
fn objects() -> Vec<Value> {
    let kustomization = yaml(&deploy("kubernetes/kustomization.yaml")).remove(0);
    let files = items(&kustomization["resources"]).map(text).filter(|name| name.ends_with(".yaml"));
    let mut listed: Vec<&str> = files.collect();
    let objects = listed.iter().flat_map(|file| yaml(&deploy("kubernetes").join(file))).collect();
    let mut there: Vec<String> = std::fs::read_dir(deploy("kubernetes"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "kustomization.yaml")
        .collect();
    there.sort();
    listed.sort_unstable();
    assert_eq!(there, listed, "every file is applied");
    objects
}

fn of_kind<'a>(objects: &'a [Value], kinds: &'a [&str]) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| kinds.contains(&text(&object["kind"])))
}

fn workloads(objects: &[Value]) -> Vec<&Value> {
    let found: Vec<&Value> = of_kind(objects, &["Deployment", "StatefulSet"]).collect();
    assert_eq!(found.len(), 3);
    found
}

fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

/// The labels of the pods of a workload, those that a StatefulSet gives each of them included.
fn pods(workload: &Value) -> Vec<BTreeMap<String, String>> {
    let labels: BTreeMap<String, String> =
        serde_json::from_value(workload["spec"]["template"]["metadata"]["labels"].clone()).unwrap();
    let first = workload["spec"]["ordinals"]["start"].as_u64().unwrap_or(0);
    let replicas = workload["spec"]["replicas"].as_u64().unwrap();
    let pod = |number| {
        let mut labels = labels.clone();
        labels.insert("statefulset.kubernetes.io/pod-name".into(), format!("{}-{number}", name(workload)));
        labels
    };
    (first..first + replicas).map(pod).collect()
}

fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let label = |key: &str| labels.get(key).map(String::as_str);
    let exact =
        selector.get("matchLabels").or(selector.get("matchExpressions").is_none().then_some(selector));
    let mut exact = exact.and_then(Value::as_object).into_iter().flatten();
    let mut expressions = items(&selector["matchExpressions"]);
    exact.all(|(key, value)| label(key) == Some(text(value)))
        && expressions
            .all(|each| items(&each["values"]).any(|value| label(text(&each["key"])) == Some(text(value))))
}

#[test]
fn every_selector_finds_pods() {
    let objects = objects();
    let all: Vec<_> = workloads(&objects).into_iter().flat_map(pods).collect();
    for workload in workloads(&objects) {
        let selector = &workload["spec"]["selector"];
        assert!(pods(workload).iter().all(|labels| selects(selector, labels)), "{}", name(workload));
        let others = all.iter().filter(|labels| selects(selector, labels)).count();
        assert_eq!(others, pods(workload).len(), "{} takes pods that are not its own", name(workload));
    }
    for object in of_kind(&objects, &["Service", "PodDisruptionBudget"]) {
        let selector = &object["spec"]["selector"];
        assert!(all.iter().any(|labels| selects(selector, labels)), "{} selects nothing", name(object));
    }
    for policy in of_kind(&objects, &["NetworkPolicy"]) {
        assert!(all.iter().any(|labels| selects(&policy["spec"]["podSelector"], labels)), "{}", name(policy));
        let from = items(&policy["spec"]["ingress"]).flat_map(|rule| items(&rule["from"]));
        for peer in from.filter_map(|from| from.get("podSelector")) {
            assert!(
                all.iter().any(|labels| selects(peer, labels)),
                "{}: no workload has the labels {peer}",
                name(policy)
            );
        }
    }
}

/// The one container of a workload.
fn container(workload: &Value) -> &Value {
    let [container] = &workload["spec"]["template"]["spec"]["containers"].as_array().unwrap()[..] else {
        panic!("{} has one container", name(workload))
    };
    container
}

fn container_port(container: &Value, name: &str) -> u64 {
    let found = items(&container["ports"]).find(|port| port["name"] == name);
    found.unwrap_or_else(|| panic!("no port {name}"))["containerPort"].as_u64().unwrap()
}

#[test]
fn ports_probes_and_deadlines_are_those_of_the_configurations() {
    let (objects, fleet) = (objects(), example("fleet"));
    let gateway =
        (fleet.gateway.listen.address, fleet.gateway.listen.admin, fleet.gateway.drain.deadline.get());
    let issuer = (fleet.issuer.listen.address, fleet.issuer.listen.admin, fleet.issuer.drain.deadline.get());
    for (daemon, public, (address, admin, drain)) in
        [("gateway", "proxy", gateway), ("issuer", "http", issuer)]
    {
        let workload = workloads(&objects).into_iter().find(|workload| name(workload) == daemon).unwrap();
        let (pod, container) = (&workload["spec"]["template"]["spec"], container(workload));
        assert_eq!(container_port(container, public), u64::from(address.port()), "{daemon}");
        assert_eq!(container_port(container, "admin"), u64::from(admin.port()), "{daemon}");
        for (probe, path) in [("readinessProbe", "/readyz"), ("livenessProbe", "/livez")] {
            assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": "admin"}), "{daemon}");
        }
        let listen = items(&container["env"]).find(|env| env["name"] == "POSTERN_LISTEN_ADMIN").unwrap();
        assert_eq!(listen["value"], format!("$(POD_IP):{}", admin.port()));
        let before = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or(0);
        let grace = Duration::from_secs(pod["terminationGracePeriodSeconds"].as_u64().unwrap());
        assert!(grace > drain + Duration::from_secs(before), "{daemon} is killed before it has drained");
        // Nothing but the public port is led to from outside.
        let service = of_kind(&objects, &["Service"]).find(|service| name(service) == daemon).unwrap();
        assert_eq!(service["spec"]["ports"].as_array().unwrap().len(), 1);
        assert_eq!(service["spec"]["ports"][0]["targetPort"], public);
        assert_eq!(service["spec"]["ports"][0]["port"], address.port());
    }
}

#[test]
fn network_policies_name_the_ports_that_pods_have() {
    let objects = objects();
    let mut ports = BTreeMap::<&str, Vec<u64>>::new();
    for workload in workloads(&objects) {
        let all = items(&container(workload)["ports"]).map(|port| port["containerPort"].as_u64().unwrap());
        ports.insert(name(workload), all.collect());
    }
    for policy in
        of_kind(&objects, &["NetworkPolicy"]).filter(|policy| !["deny-all", "admin"].contains(&name(policy)))
    {
        for rule in items(&policy["spec"]["ingress"]) {
            let port = rule["ports"][0]["port"].as_u64().unwrap();
            assert_eq!(ports[name(policy)][0], port, "{}: the public port and no other", name(policy));
        }
    }
    let admin = of_kind(&objects, &["NetworkPolicy"]).find(|policy| name(policy) == "admin").unwrap();
    let rule = &admin["spec"]["ingress"][0];
    let monitoring = json!({"kubernetes.io/metadata.name": "monitoring"});
    assert_eq!(rule["from"], json!([{"namespaceSelector": {"matchLabels": monitoring}}]));
    let opened: Vec<u64> = items(&rule["ports"]).map(|port| port["port"].as_u64().unwrap()).collect();
    assert_eq!(opened, [ports["gateway"][1], ports["issuer"][1]]);
    let memcached = of_kind(&objects, &["NetworkPolicy"]).find(|policy| name(policy) == "memcached").unwrap();
    let from = &memcached["spec"]["ingress"][0]["from"];
    assert_eq!(from, &json!([{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "gateway"}}}]));
}

#[test]
fn the_addresses_in_the_configurations_are_services() {
    let objects = objects();
    let services: BTreeMap<String, u64> = of_kind(&objects, &["Service"])
        .map(|service| (name(service).to_owned(), service["spec"]["ports"][0]["port"].as_u64().unwrap()))
        .collect();
    let gateway = workloads(&objects).into_iter().find(|workload| name(workload) == "gateway").unwrap();
    let env = |variable: &str| {
        let found = items(&container(gateway)["env"]).find(|env| env["name"] == variable);
        text(&found.unwrap()["value"]).to_owned()
    };
    let replicas: Vec<Vec<String>> = serde_json::from_str(&env("POSTERN_STORE_MEMCACHED_REPLICAS")).unwrap();
    assert_eq!(replicas.len(), 3);
    let mut pods_reached = BTreeSet::new();
    for address in replicas.iter().flatten() {
        let host = address.split(':').next().unwrap();
        assert_eq!(services[host], u64::from(port(address)), "{address}");
        let service = of_kind(&objects, &["Service"]).find(|service| name(service) == host).unwrap();
        let all = workloads(&objects).into_iter().flat_map(pods);
        pods_reached
            .insert(all.filter(|labels| selects(&service["spec"]["selector"], labels)).collect::<Vec<_>>());
    }
    assert!(pods_reached.len() == 3 && pods_reached.iter().all(|pods| pods.len() == 1), "{pods_reached:?}");
    assert!(env("POSTERN_ISSUER_DIRECTORY").starts_with(&format!("http://issuer:{}/", services["issuer"])));
}

#[test]
fn pods_are_restricted_and_their_volumes_are_there() {
    let objects = objects();
    let maps = yaml(&deploy("examples/fleet/kustomization.yaml")).remove(0);
    let maps: BTreeMap<&str, &str> =
        items(&maps["configMapGenerator"]).map(|map| (text(&map["name"]), text(&map["files"][0]))).collect();
    for file in maps.values() {
        assert!(deploy("examples/fleet").join(file).exists(), "{file}");
    }
    for workload in workloads(&objects) {
        let (who, pod, container) =
            (name(workload), &workload["spec"]["template"]["spec"], container(workload));
        let confined = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}
        });
        for container in items(&pod["initContainers"]).chain([container]) {
            assert_eq!(container["securityContext"], confined, "{who}");
        }
        assert_eq!(pod["automountServiceAccountToken"], false, "{who}");
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{who}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{who}");
        assert!(container["resources"]["limits"]["memory"].is_string(), "{who}");
        for env in
            items(&container["env"]).map(|env| text(&env["name"])).filter(|env| env.starts_with("POSTERN_"))
        {
            assert_variable_is_known(env);
        }
        let claims = items(&workload["spec"]["volumeClaimTemplates"]).map(name);
        let volumes: Vec<&str> =
            items(&pod["volumes"]).map(|volume| text(&volume["name"])).chain(claims).collect();
        for mount in items(&container["volumeMounts"]) {
            assert!(volumes.contains(&text(&mount["name"])), "{who}: {mount}");
        }
        for volume in items(&pod["volumes"]).filter_map(|volume| volume.get("configMap")) {
            assert!(maps.contains_key(text(&volume["name"])), "{who}: no ConfigMap {volume}");
        }
    }
    assert_eq!(maps["gateway"], "gateway.toml");
}
