// promql-uses tells which metrics and labels PromQL expressions need.
//
// It reads an expression as JSON per line, {"expr": "..."}, and writes an answer per line:
//
//	{"uses": [{"metric": "m", "matchers": [{"label": "a", "op": "=~", "value": "b|c"}], "labels": ["d"]}],
//	 "results": [0], "by": ["d"]}
//
// "labels" are those that aggregations and vector matching take from the series of a selector. "results" are the selectors from which the
// labels of the result come, "by" are these labels, if an aggregation or vector matching lists them; null: all of the series.
// An expression that cannot be parsed gets {"error": "..."}.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

type matcher struct {
	Label string `json:"label"`
	Op    string `json:"op"`
	Value string `json:"value"`
}

type use struct {
	Metric   string    `json:"metric"`
	Matchers []matcher `json:"matchers"`
	Labels   []string  `json:"labels"`
}

type answer struct {
	Uses    []use    `json:"uses,omitempty"`
	Results []int    `json:"results,omitempty"`
	By      []string `json:"by"`
	Error   string   `json:"error,omitempty"`
}

// result describes the labels of a value: the selectors that they come from, and their names if they are listed.
type result struct {
	selectors []int
	by        []string
	isListed  bool
}

type collector struct {
	uses []use
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run reads everything before it answers, so that its caller may write everything before it reads.
func run() error {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	for line := range bytes.Lines(input) {
		if err := out.Encode(describe(line)); err != nil {
			return err
		}
	}
	return nil
}

func describe(line []byte) answer {
	var question struct{ Expr string }
	if err := json.Unmarshal(line, &question); err != nil {
		return answer{Error: err.Error()}
	}
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(question.Expr)
	if err != nil {
		return answer{Error: err.Error()}
	}
	c := &collector{}
	found, err := c.visit(expr)
	if err != nil {
		return answer{Error: err.Error()}
	}
	if !found.isListed {
		found.by = nil
	} else if found.by == nil {
		found.by = []string{}
	}
	return answer{Uses: c.uses, Results: found.selectors, By: found.by}
}

func (c *collector) visit(expr parser.Expr) (result, error) {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		return c.selector(e)
	case *parser.MatrixSelector:
		return c.visit(e.VectorSelector)
	case *parser.SubqueryExpr:
		return c.visit(e.Expr)
	case *parser.ParenExpr:
		return c.visit(e.Expr)
	case *parser.UnaryExpr:
		return c.visit(e.Expr)
	case *parser.StepInvariantExpr:
		return c.visit(e.Expr)
	case *parser.NumberLiteral, *parser.StringLiteral:
		return result{}, nil
	case *parser.AggregateExpr:
		return c.aggregate(e)
	case *parser.Call:
		return c.call(e)
	case *parser.BinaryExpr:
		return c.binary(e)
	default:
		return result{}, fmt.Errorf("unknown kind of expression: %T", expr)
	}
}

func (c *collector) selector(e *parser.VectorSelector) (result, error) {
	if e.Name == "" {
		return result{}, fmt.Errorf("a selector without the name of a metric: %s", e)
	}
	found := use{Metric: e.Name, Matchers: []matcher{}, Labels: []string{}}
	for _, m := range e.LabelMatchers {
		if m.Name != labels.MetricName {
			found.Matchers = append(found.Matchers, matcher{m.Name, m.Type.String(), m.Value})
		}
	}
	c.uses = append(c.uses, found)
	return result{selectors: []int{len(c.uses) - 1}}, nil
}

// need notes that the series behind a value must have these labels.
func (c *collector) need(found result, names []string) {
	for _, nth := range found.selectors {
		for _, name := range names {
			if !slices.Contains(c.uses[nth].Labels, name) {
				c.uses[nth].Labels = append(c.uses[nth].Labels, name)
			}
		}
	}
}

func (c *collector) aggregate(e *parser.AggregateExpr) (result, error) {
	inner, err := c.visit(e.Expr)
	if err != nil {
		return result{}, err
	}
	c.need(inner, e.Grouping)
	if e.Without {
		inner.by = slices.DeleteFunc(slices.Clone(inner.by), func(name string) bool {
			return slices.Contains(e.Grouping, name)
		})
		return inner, nil
	}
	return result{inner.selectors, e.Grouping, true}, nil
}

func (c *collector) call(e *parser.Call) (result, error) {
	switch e.Func.Name {
	case "label_replace", "label_join", "absent", "absent_over_time", "scalar", "vector":
		// Their labels are not those of the series.
		for _, arg := range e.Args {
			if _, err := c.visit(arg); err != nil {
				return result{}, err
			}
		}
		return result{by: []string{}, isListed: true}, nil
	}
	var found result
	for _, arg := range e.Args {
		inner, err := c.visit(arg)
		if err != nil {
			return result{}, err
		}
		if len(inner.selectors) > 0 {
			found = inner
		}
	}
	if e.Func.Name == "histogram_quantile" {
		c.need(found, []string{"le"})
		if found.isListed && !slices.Contains(found.by, "le") {
			return result{}, fmt.Errorf("histogram_quantile needs the label le: %s", e)
		}
		found.by = slices.DeleteFunc(slices.Clone(found.by), func(name string) bool {
			return name == "le"
		})
	}
	return found, nil
}

func (c *collector) binary(e *parser.BinaryExpr) (result, error) {
	left, err := c.visit(e.LHS)
	if err != nil {
		return result{}, err
	}
	right, err := c.visit(e.RHS)
	if err != nil {
		return result{}, err
	}
	if e.VectorMatching == nil || e.RHS.Type() == parser.ValueTypeScalar {
		// One side is a number.
		if e.LHS.Type() == parser.ValueTypeScalar {
			return right, nil
		}
		return left, nil
	}
	matching := e.VectorMatching
	if matching.On {
		c.need(left, matching.MatchingLabels)
		c.need(right, matching.MatchingLabels)
	}
	switch {
	case e.Op == parser.LAND || e.Op == parser.LUNLESS:
		return left, nil
	case e.Op == parser.LOR:
		both := result{selectors: slices.Concat(left.selectors, right.selectors)}
		if left.isListed && right.isListed {
			both.isListed = true
			both.by = slices.Concat(left.by, right.by)
		}
		return both, nil
	case matching.Card == parser.CardManyToOne:
		c.need(right, matching.Include)
		return left, nil
	case matching.Card == parser.CardOneToMany:
		c.need(left, matching.Include)
		return right, nil
	case matching.On:
		return result{left.selectors, matching.MatchingLabels, true}, nil
	default:
		return left, nil
	}
}
