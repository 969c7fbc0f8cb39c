// Reads Grafana dashboards by the types of Grafana's own SDK and prints what they do not know: a misspelled field, an option of
// another kind of panel, a required field that is missing, an unknown unit. Grafana ignores such things without a word.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// The kinds of panels that are checked; a dashboard with another one needs its package here.
var kinds = map[string]bool{"heatmap": true, "row": true, "stat": true, "table": true, "timeseries": true}

var known = map[string]bool{
	units.NoUnit: true, units.Short: true, units.PercentUnit: true, units.Seconds: true, units.BytesIEC: true,
	units.BytesPerSecondSI: true, units.OpsPerSecond: true, units.RequestsPerSecond: true,
}

func main() {
	runtime := cog.NewRuntime()
	runtime.RegisterPanelcfgVariant(heatmap.VariantConfig())
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(table.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	runtime.RegisterDataqueryVariant(prometheus.VariantConfig())
	panels, faults := 0, 0
	for _, path := range os.Args[1:] {
		count, found := check(path)
		panels += count
		for _, fault := range found {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, fault)
		}
		faults += len(found)
	}
	fmt.Printf("%d dashboards, %d panels, %d faults\n", len(os.Args)-1, panels, faults)
	if faults > 0 || panels == 0 {
		os.Exit(1)
	}
}

// check returns the number of panels and what is wrong with the dashboard.
func check(path string) (int, []error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, []error{err}
	}
	var raw struct{ Panels []json.RawMessage }
	if err := json.Unmarshal(text, &raw); err != nil {
		return 0, []error{err}
	}
	var board dashboard.Dashboard
	found := append(parts(board.UnmarshalJSONStrict(text)), parts(board.Validate())...)
	for index, panel := range raw.Panels {
		var fields struct {
			Type, Title string
			FieldConfig struct {
				Defaults  struct{ Unit string }
				Overrides []struct {
					Properties []struct {
						Id    string
						Value any
					}
				}
			}
		}
		if err := json.Unmarshal(panel, &fields); err != nil {
			found = append(found, fmt.Errorf("panels[%d]: %w", index, err))
			continue
		}
		used := []any{fields.FieldConfig.Defaults.Unit}
		for _, override := range fields.FieldConfig.Overrides {
			for _, property := range override.Properties {
				if property.Id == "unit" {
					used = append(used, property.Value)
				}
			}
		}
		for _, unit := range used {
			if name, ok := unit.(string); !ok || name != "" && !known[name] {
				found = append(found, fmt.Errorf("panels[%d] %q: the unit %v is not in the list of this check", index, fields.Title, unit))
			}
		}
		// Of a kind without a variant the SDK accepts everything.
		if !kinds[fields.Type] {
			found = append(found, fmt.Errorf("panels[%d] %q: the kind %q is not in the list of this check", index, fields.Title, fields.Type))
		}
	}
	return len(raw.Panels), found
}

// parts takes an error of the SDK apart. A list without an entry is no error, though it is no nil either.
func parts(err error) (found []error) {
	var list cog.BuildErrors
	if !errors.As(err, &list) && err != nil {
		return []error{err}
	}
	for _, one := range list {
		found = append(found, one)
	}
	return found
}
