package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/bufbuild/protocompile"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// routeRules is the number of rules of a batch. Each client has its own: all of them always have one version.
const routeRules = 5

// routeFace calls quoin.route.v1 by its text, without code generated from it.
type routeFace struct {
	methods protoreflect.MethodDescriptors
	nodes   map[int]*grpc.ClientConn
}

func dialRoute(protos string, nodes []*node) (*routeFace, error) {
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{protos}})}
	files, err := compiler.Compile(context.Background(), "quoin/route/v1/route.proto")
	if err != nil {
		return nil, err
	}
	face := &routeFace{methods: files[0].Services().ByName("Route").Methods(), nodes: map[int]*grpc.ClientConn{}}
	for _, n := range nodes {
		face.nodes[n.number], err = grpc.NewClient(n.client(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(soon))
		if err != nil {
			return nil, err
		}
	}
	return face, nil
}

// call sends a request that is written as protobuf's JSON.
func (face *routeFace) call(ctx context.Context, node int, name, request string) (*dynamicpb.Message, error) {
	method := face.methods.ByName(protoreflect.Name(name))
	question, answer := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if err := protojson.Unmarshal([]byte(request), question); err != nil {
		return nil, err
	}
	return answer, face.nodes[node].Invoke(ctx, "/quoin.route.v1.Route/"+name, question, answer)
}

func (r *round) routeGroup(client int) string { return fmt.Sprintf("r%d-%d", r.number, client) }

// routeWorker writes its rules again and again, a new version each time, all in one batch, and reads them.
func (r *round) routeWorker(client int, n *node, random *rand.Rand) {
	for version := 1; r.loading(); {
		if random.IntN(2) == 0 {
			r.readRoutes(client, n, timeout)
		} else {
			r.writeRoutes(client, n, version)
			version++
		}
		r.think(random)
	}
}

func (r *round) writeRoutes(client int, n *node, version int) {
	var rules []string
	for rule := range routeRules {
		rules = append(rules, fmt.Sprintf(`{"vni":%d,"ip":"10.0.%d.%d","mac":"02:00:00:00:00:01","hostIp":"%s","group":"%s"}`,
			r.number, client, rule+1, hostIp(version), r.routeGroup(client)))
	}
	o := &operation{Client: client, Node: n.number, Face: "route", Kind: "put", Key: r.routeGroup(client), Value: strconv.Itoa(version), Start: now()}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	answer, err := r.harness.route.call(ctx, n.number, "Put", `{"rules":[`+strings.Join(rules, ",")+`]}`)
	if err == nil {
		o.Rev = answer.Get(answer.Descriptor().Fields().ByName("revision")).Int()
	}
	r.finish(o, err)
}

// A version is in the address of the host that rules point to.
func hostIp(version int) string { return fmt.Sprintf("172.16.%d.%d", version/250, version%250+1) }

// readRoutes lists a client's rules. Values: the hosts that they point to.
func (r *round) readRoutes(client int, n *node, limit time.Duration) {
	o := &operation{Client: client, Node: n.number, Face: "route", Kind: "read", Key: r.routeGroup(client), Start: now()}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answer, err := r.harness.route.call(ctx, n.number, "List", fmt.Sprintf(`{"group":%q}`, o.Key))
	if err == nil {
		rules := answer.Get(answer.Descriptor().Fields().ByName("rules")).List()
		for place := range rules.Len() {
			rule := rules.Get(place).Message()
			o.Values = append(o.Values, rule.Get(rule.Descriptor().Fields().ByName("host_ip")).String())
			o.Revs = append(o.Revs, rule.Get(rule.Descriptor().Fields().ByName("revision")).Int())
		}
	}
	r.finish(o, err)
}

// readRoutesFinally reads every client's rules through every node, once all is well again.
func (r *round) readRoutesFinally() {
	clients := map[string]int{}
	for _, o := range r.history.of("route") {
		clients[o.Key] = o.Client
	}
	for _, client := range clients {
		for _, n := range r.harness.cluster.nodes {
			r.readRoutes(client, n, 10*time.Second)
		}
	}
}

// judgeRoutes checks each client's reads: all rules of one version at one revision; one that was asked for, and not said not to be
// done; at the revision that its client was told; and never older than what was answered before the read began or read before. An
// unknown write may be done late, so versions may come back in another order than they were asked for.
func (r *round) judgeRoutes() []string {
	byKey := map[string][]*operation{}
	for _, o := range r.history.of("route") {
		byKey[o.Key] = append(byKey[o.Key], o) // a client's, one after the other
	}
	var wrong []string
	for key, operations := range byKey {
		var least int64
		revs := map[string]int64{"": 0} // by host; -1 as long as nobody was told
		for _, o := range operations {
			switch {
			case o.Kind == "put" && o.Outcome == done:
				version, _ := strconv.Atoi(o.Value)
				revs[hostIp(version)], least = o.Rev, max(least, o.Rev)
			case o.Kind == "put" && o.Outcome == unknown:
				version, _ := strconv.Atoi(o.Value)
				revs[hostIp(version)] = -1
			case o.Kind == "read" && o.Outcome == done:
				host, rev, whole := o.routes()
				told, asked := revs[host]
				if !whole || !asked || rev < least || (told != -1 && told != rev) {
					r.lost.Add(1)
					wrong = append(wrong, fmt.Sprintf("rules of %s through node %d are %v at %v: revision %d was acknowledged or read before", key, o.Node, o.Values, o.Revs, least))
					continue
				}
				revs[host], least = rev, rev
			}
		}
	}
	return wrong
}

// routes gives the host and the revision that all rules of a read have, and whether they all have them.
func (o *operation) routes() (string, int64, bool) {
	if len(o.Values) == 0 {
		return "", 0, true
	}
	return o.Values[0], o.Revs[0], len(o.Values) == routeRules && o.allAre(o.Values[0])
}

func (o *operation) allAre(value string) bool {
	for place, v := range o.Values {
		if v != value || o.Revs[place] != o.Revs[0] {
			return false
		}
	}
	return true
}
