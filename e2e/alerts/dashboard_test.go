package alerts

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
)

// dashboard is the part of Grafana's JSON model that the queries need.
type dashboard struct {
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name     string          `json:"name"`
			Type     string          `json:"type"`
			AllValue string          `json:"allValue"`
			Query    json.RawMessage `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	GridPos     struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

// mayBeEmpty returns whether the panel's description explains when it is empty.
func (p panel) mayBeEmpty() bool { return strings.Contains(p.Description, "Empty ") }

var labelValues = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)

// checkDashboard runs every query of the dashboard, and of its variables, on the Prometheus.
func checkDashboard(t *testing.T, path, prometheus string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	// Grafana's own variables, for a range of ten minutes and scrapes every second.
	values := []string{"$__rate_interval", "10s", "$__range", "10m"}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		values = append(values, "$"+v.Name, v.AllValue)
		var query struct {
			Query string `json:"query"`
		}
		if err := json.Unmarshal(v.Query, &query); err != nil {
			t.Fatal(err)
		}
		m := labelValues.FindStringSubmatch(query.Query)
		if m == nil {
			t.Fatalf("variable %s asks %q", v.Name, query.Query)
		}
		var found []string
		get(t, prometheus+"/api/v1/label/"+m[2]+"/values?"+url.Values{"match[]": {m[1]}}.Encode(), &found)
		if len(found) == 0 {
			t.Errorf("variable %s has no values", v.Name)
		}
	}
	fill := strings.NewReplacer(values...)
	asked := 0
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q has the id of another one, %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0 || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24) {
			t.Errorf("panel %q has no description, no query or no position", p.Title)
		}
		for _, target := range p.Targets {
			asked++
			expr := fill.Replace(target.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("panel %q: unknown variable in %s", p.Title, expr)
			}
			if points := ask(t, prometheus, expr); points > 0 || p.mayBeEmpty() {
				continue
			}
			// A query over whole minutes has no data before the first one.
			clustertest.Until(t, patience, fmt.Sprintf("panel %q, whose description does not allow it to be empty, has data", p.Title), func() error {
				if ask(t, prometheus, expr) == 0 {
					return errors.New("no data: " + expr)
				}
				return nil
			})
		}
	}
	if asked == 0 {
		t.Error("the dashboard asks nothing")
	}
}

// ask counts the points that a query returns for the last hour, which is more than the test lasts.
func ask(t *testing.T, prometheus, expr string) int {
	t.Helper()
	now := time.Now()
	var answer struct {
		Result []struct {
			Values [][2]any `json:"values"`
		} `json:"result"`
	}
	get(t, prometheus+"/api/v1/query_range?"+url.Values{
		"query": {expr}, "step": {"1"},
		"start": {strconv.FormatInt(now.Add(-time.Hour).Unix(), 10)}, "end": {strconv.FormatInt(now.Unix(), 10)},
	}.Encode(), &answer)
	points := 0
	for _, series := range answer.Result {
		for _, v := range series.Values {
			if v[1] != "NaN" {
				points++
			}
		}
	}
	return points
}

// get decodes the data of a response of the Prometheus API.
func get(t *testing.T, address string, into any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct {
		Status string          `json:"status"`
		Error  string          `json:"error"`
		Data   json.RawMessage `json:"data"`
	}
	err = json.NewDecoder(response.Body).Decode(&answer)
	if err == nil && answer.Status != "success" {
		err = fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	if err == nil {
		err = json.Unmarshal(answer.Data, into)
	}
	if err != nil {
		t.Fatalf("GET %s: %v", address, err)
	}
}
