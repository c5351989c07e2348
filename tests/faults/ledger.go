package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// ledgerAccounts is the number of accounts of a round.
const ledgerAccounts = 6

// transfer is one in JSON, both ways.
type transfer struct {
	Id       string `json:"id"`
	Debit    string `json:"debit_account"`
	Credit   string `json:"credit_account"`
	Amount   string `json:"amount"`
	Currency string `json:"currency"`
	Linked   bool   `json:"linked,omitempty"`
	Status   string `json:"status,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	Position int    `json:"position,omitempty"`
}

// movement is what a client asked of the ledger and was told in the end: one transfer, or two linked ones.
type movement struct {
	asked   []transfer
	told    []transfer // in the same order, once the answer is known
	outcome outcome
	node    int
	error   string
}

var ledgerClient = &http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}

// post sends JSON and gives the answer's status and body.
func post(n *node, path string, body any) (int, []byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	response, err := ledgerClient.Post("http://"+n.http()+path, "application/json", bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

func get(n *node, path string, into any) (int, error) {
	response, err := ledgerClient.Get("http://" + n.http() + path)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != 200 {
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, fmt.Errorf("%s from node %d: %d %s", path, n.number, response.StatusCode, text)
	}
	return 200, json.NewDecoder(response.Body).Decode(into)
}

func randomId(random *rand.Rand) string {
	a, b := random.Uint64(), random.Uint64()
	return fmt.Sprintf("%08x-%04x-7%03x-8%03x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>52, b&0xffffffffffff)
}

func (r *round) account(number int) string {
	return fmt.Sprintf("%08x-0000-7000-8000-%012x", r.number, number+1)
}

// openAccounts makes the round's accounts, each with 100.00.
func (r *round) openAccounts() error {
	node := r.harness.cluster.nodes[0]
	random := rand.New(rand.NewPCG(r.harness.seed, uint64(r.number)))
	for number := range ledgerAccounts {
		body := map[string]string{"id": r.account(number), "currency": "EUR", "number": fmt.Sprintf("r%d-%d", r.number, number)}
		if status, answer, err := post(node, "/v1/accounts", body); err != nil || status != 201 {
			return fmt.Errorf("opening an account: %d %s %v", status, answer, err)
		}
		m := &movement{asked: []transfer{{Id: randomId(random), Debit: "@world/EUR", Credit: r.account(number), Amount: "100.00", Currency: "EUR"}}}
		if r.attempt(m, node); m.outcome != done || m.told[0].Status != "done" {
			return fmt.Errorf("filling an account: %+v", m)
		}
		r.movements = append(r.movements, m)
	}
	return nil
}

// ledgerWorker moves amounts between the round's accounts, some more than there is, some by two linked transfers. Whatever is not
// answered for good is sent again with its id, through any node, except for one in eight.
func (r *round) ledgerWorker(client int, n *node, random *rand.Rand) {
	nodes := r.harness.cluster.nodes
	for r.loading() {
		from := random.IntN(ledgerAccounts)
		to := (from + 1 + random.IntN(ledgerAccounts-1)) % ledgerAccounts
		one := func() transfer {
			return transfer{Id: randomId(random), Debit: r.account(from), Credit: r.account(to), Currency: "EUR",
				Amount: fmt.Sprintf("%d.%02d", random.IntN(60), 1+random.IntN(99))}
		}
		m := &movement{asked: []transfer{one()}}
		if random.IntN(3) == 0 {
			from, to = to, from
			m.asked = append(m.asked, one())
			m.asked[0].Linked = true
		}
		o := &operation{Client: client, Node: n.number, Face: "ledger", Kind: "transfer", Key: m.asked[0].Id, Start: now()}
		r.attempt(m, n)
		if random.IntN(8) != 0 {
			for end := time.Now().Add(40 * time.Second); m.outcome != done && time.Now().Before(end); {
				time.Sleep(time.Duration(20+random.IntN(50)) * time.Millisecond)
				r.attempt(m, nodes[random.IntN(len(nodes))])
			}
		}
		o.Node, o.End, o.Outcome, o.Error = m.node, now(), m.outcome, m.error
		r.record(o)
		r.mutex.Lock()
		r.movements = append(r.movements, m)
		r.mutex.Unlock()
		r.think(random)
	}
}

// attempt sends a movement once. What one attempt left open another may settle, but "nothing was done" after an unknown outcome does not.
func (r *round) attempt(m *movement, n *node) {
	was := m.outcome
	m.node = n.number
	var status int
	var answer []byte
	var err error
	if len(m.asked) == 1 {
		status, answer, err = post(n, "/v1/transfers", m.asked[0])
	} else {
		status, answer, err = post(n, "/v1/transfers/batch", map[string]any{"transfers": m.asked})
	}
	m.error = fmt.Sprint(status, " ", string(answer), err)
	switch {
	case err == nil && (status == 200 || status == 201 || status == 422):
		m.outcome, m.told = done, parseTold(status, answer, len(m.asked))
		if m.told == nil {
			r.complain("the ledger's answer makes no sense: %s", m.error)
		}
	case was != unknown && ((err != nil && strings.Contains(err.Error(), "connect: ")) || strings.Contains(string(answer), "nothing was done")):
		m.outcome = notDone
	case err == nil && status < 500 && status != 429:
		m.outcome = unknown
		r.complain("the ledger answered %s to %+v", m.error, m.asked)
	default:
		m.outcome = unknown
	}
}

func parseTold(status int, answer []byte, count int) []transfer {
	var body struct {
		transfer
		Transfer *transfer `json:"transfer"`
		Results  []struct {
			Transfer transfer `json:"transfer"`
		} `json:"results"`
	}
	// A problem's status is a number, a transfer's a word.
	if status == 422 {
		var problem struct {
			Transfer transfer `json:"transfer"`
		}
		if json.Unmarshal(answer, &problem) != nil || problem.Transfer.Id == "" {
			return nil
		}
		return []transfer{problem.Transfer}
	}
	if json.Unmarshal(answer, &body) != nil {
		return nil
	}
	var told []transfer
	for _, result := range body.Results {
		told = append(told, result.Transfer)
	}
	if body.Id != "" {
		told = []transfer{body.transfer}
	}
	if len(told) != count {
		return nil
	}
	return told
}

// judgeLedger compares, through every node, all that was recorded with all that was asked and told: each id once, with the result
// that its client was told; nothing else; linked ones together; balances that follow.
func (r *round) judgeLedger() []string {
	var wrong []string
	for _, n := range r.harness.cluster.nodes {
		recorded, err := r.recorded(n)
		if err != nil {
			wrong = append(wrong, err.Error())
			continue
		}
		wrong = append(wrong, r.compareMovements(n.name, recorded)...)
		wrong = append(wrong, r.compareBalances(n, recorded)...)
	}
	return wrong
}

// recorded lists all transfers since the round began.
func (r *round) recorded(n *node) ([]transfer, error) {
	var all []transfer
	after := fmt.Sprintf("%d.0", r.firstRev-1)
	for after != "" {
		var page struct {
			Transfers []transfer `json:"transfers"`
			Next      string     `json:"next"`
		}
		status, err := get(n, "/v1/transfers?limit=1000&after="+after, &page)
		if status == 404 {
			break
		}
		if err != nil {
			return nil, err
		}
		all, after = append(all, page.Transfers...), page.Next
	}
	return all, nil
}

func (r *round) compareMovements(where string, recorded []transfer) []string {
	var wrong []string
	found := map[string]transfer{}
	for _, t := range recorded {
		if _, twice := found[t.Id]; twice {
			wrong = append(wrong, fmt.Sprintf("%s has transfer %s twice", where, t.Id))
		}
		found[t.Id] = t
	}
	asked := 0
	for _, m := range r.movements {
		there := 0
		for place, t := range m.asked {
			have, ok := found[t.Id]
			if ok {
				there++
				asked++
			}
			switch {
			case !ok && m.outcome == done:
				r.lost.Add(1)
				wrong = append(wrong, fmt.Sprintf("%s has no transfer %s: its client was told %+v", where, t.Id, m.told))
			case ok && m.outcome == notDone:
				wrong = append(wrong, fmt.Sprintf("%s has %+v, though its client was told that nothing was done: %s", where, have, m.error))
			case ok && m.outcome == done && (have.Status != m.told[place].Status || have.Revision != m.told[place].Revision || have.Position != m.told[place].Position):
				wrong = append(wrong, fmt.Sprintf("%s has %+v, though its client was told %+v", where, have, m.told[place]))
			case ok && (have.Debit != t.Debit && t.Debit != "@world/EUR" || have.Credit != t.Credit || have.Amount != t.Amount):
				wrong = append(wrong, fmt.Sprintf("%s has %+v, asked was %+v", where, have, t))
			case ok && place > 0 && (have.Status == "done") != (found[m.asked[0].Id].Status == "done"):
				wrong = append(wrong, fmt.Sprintf("%s has only one of two linked transfers done: %+v and %+v", where, found[m.asked[0].Id], have))
			}
		}
		if there > 0 && there < len(m.asked) {
			wrong = append(wrong, fmt.Sprintf("%s has %d of the linked %+v", where, there, m.asked))
		}
	}
	if asked != len(found) {
		wrong = append(wrong, fmt.Sprintf("%s has %d transfers, %d of which were asked for", where, len(found), asked))
	}
	return wrong
}

func (r *round) compareBalances(n *node, recorded []transfer) []string {
	expected := map[string]int{}
	for _, t := range recorded {
		if t.Status == "done" {
			expected[t.Debit] -= cents(t.Amount)
			expected[t.Credit] += cents(t.Amount)
		}
	}
	var wrong []string
	for number := range ledgerAccounts {
		var account struct {
			Balance string `json:"balance"`
		}
		id := r.account(number)
		if _, err := get(n, "/v1/accounts/"+id, &account); err != nil {
			wrong = append(wrong, err.Error())
		} else if have := cents(account.Balance); have != expected[id] || have < 0 {
			wrong = append(wrong, fmt.Sprintf("account %s has %s on %s, its transfers make %d cents", id, account.Balance, n.name, expected[id]))
		}
	}
	return wrong
}

// cents reads an amount with two places.
func cents(amount string) int {
	digits := strings.Replace(strings.TrimPrefix(amount, "-"), ".", "", 1)
	value := 0
	for _, digit := range digits {
		value = value*10 + int(digit-'0')
	}
	if strings.HasPrefix(amount, "-") {
		return -value
	}
	return value
}

// complain records what a client found wrong, once for each text.
func (r *round) complain(format string, values ...any) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if text := fmt.Sprintf(format, values...); !slices.Contains(r.wrong, text) && len(r.wrong) < 20 {
		r.wrong = append(r.wrong, text)
	}
}
